"""The rebalance job: the load that the nodes' wheels foretell, and the moves that spread it (docs/control-plane.md).

model.py      what goes in and comes out: map of the cluster, settings, what was found. No Spark
search.py     the assignment search and its lower bound over NumPy arrays: pure
source.py     `delaycluster.slots`, a PySpark data source over the nodes' GetWheel; wheels.py asks one node
history.py    the same rows as Parquet, by the time at which they were taken
loads.py      the wide work, in Spark: per node and slot, per candidate shard
job.py        study(): all of it together
maps.py       the cluster's map from its registry; publish.py writes a plan into Kubernetes
session.py    a SparkSession whose workers run this interpreter
__main__.py   python -m delayrebalance
"""
