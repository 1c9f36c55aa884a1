"""One shard's copy in this process: opened, fetched, following or leading, and given up."""
