"""Doors: other protocols than DelayService's columns, over the same shards, messages and rights."""
