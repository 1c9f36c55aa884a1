"""What a command is aimed at: an endpoint, a cluster in Kubernetes, a local directory."""
