"""What keeps a shard's files small and whole: checkpoints, freeing and emptying of segments, snapshots, scrubbing."""
