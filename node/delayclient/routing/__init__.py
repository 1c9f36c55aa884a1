"""The way to a shard's master: routes, endpoints and their connections."""
