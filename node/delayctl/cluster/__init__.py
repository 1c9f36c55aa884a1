"""Commands about nodes, shards and the cluster as a whole."""
