"""Targets of commands: an endpoint, a cluster in Kubernetes, a local directory."""
