"""The node's gRPC and HTTP front doors: each call's handler, and where the call goes."""
