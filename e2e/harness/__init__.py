"""What the scenarios are made of: a guarded kubectl, helm, the machines under the nodes, a cluster, a load on it."""
