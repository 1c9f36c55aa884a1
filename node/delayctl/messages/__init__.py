"""Commands about messages and their consumers."""
