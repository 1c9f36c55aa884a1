"""The load to come, read from the nodes' wheels and kept: rows that Spark sums by node and slot."""
