"""How nodes reach each other: TCP links for logs, UDP for heartbeats."""
