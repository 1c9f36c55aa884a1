"""`make demo`: a year of real flights as delayed messages on a local cluster, checked at the end."""
