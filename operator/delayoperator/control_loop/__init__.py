"""The control loop: observes the registry, asks the nodes, plans, applies."""
