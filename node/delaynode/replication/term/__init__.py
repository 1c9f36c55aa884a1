"""One term of one shard: its commit rule, its in-sync set, how it begins, ends and is handed over."""
