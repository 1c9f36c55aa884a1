"""The producer: batches by shard, numbered, sent in order."""
