"""The scenarios' tools: a guarded kubectl, helm, the machines under the nodes, a cluster, a load on it."""
