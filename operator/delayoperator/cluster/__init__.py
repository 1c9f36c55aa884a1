"""Decides about pods, volumes and sizes, and what a cluster's conditions say: pure functions.

Each takes what was seen as plain values and answers with actions that carry their reason, or with what it waits for.
"""
