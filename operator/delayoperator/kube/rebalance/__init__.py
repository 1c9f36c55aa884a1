"""The DelayRebalances of a cluster: driven, stored in the custom resource, proposed by Jobs."""
