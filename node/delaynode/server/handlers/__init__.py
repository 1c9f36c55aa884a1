"""What each RPC does, once the call is taken up and its sender may make it."""
