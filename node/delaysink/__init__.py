"""`delaysink`: delivers a topic's due messages to something that is not a consumer of ours: by HTTP, or to NATS.

A sink is a consumer group. Any number of processes of one sink share its messages; nothing of it runs in a node.
"""
