"""The consumer and the reader."""
