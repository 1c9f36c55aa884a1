"""The official RocketMQ client in Java, on DelayCluster and on RocketMQ itself: `python -m benchmarks.doors`."""
