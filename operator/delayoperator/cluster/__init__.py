"""What is to be done about pods, volumes and sizes, and what is said about a cluster: pure functions.

Each takes what was seen as plain values and answers with actions that carry their reason, or with what it waits for.
"""
