"""externalscaler.ExternalScaler: the door for KEDA (docs/keda.md).

service     each call, and what is asked of the cluster for it
metadata    a trigger's metadata; pure
replicas    how many workers a load to come needs; pure
"""
