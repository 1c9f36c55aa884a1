"""kopf's routing table, and the table of clusters that it wakes."""
