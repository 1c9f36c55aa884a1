"""Who calls, and what callers may do."""
