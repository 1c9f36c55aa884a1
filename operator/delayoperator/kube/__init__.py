"""The operator's edges to Kubernetes: a worker per DelayCluster that observes, asks what is to be done and does it."""
