"""What bounds the memory that clients make the node hold."""
