"""A cluster of real node processes on one machine, without Kubernetes: `delayctl local`, tests, demo and bench."""

from delaylocal.cluster import LocalCluster, LocalClusterError

__all__ = ["LocalCluster", "LocalClusterError"]
