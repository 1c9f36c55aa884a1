"""`delayctl`, the command line."""
