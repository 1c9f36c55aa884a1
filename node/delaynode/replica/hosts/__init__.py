"""The host of a copy: what a master and a slave do with the shard's files, one class each, and what both share."""
