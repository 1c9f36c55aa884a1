"""Bounds on the memory that clients make the node hold."""
