"""The same load on DelayCluster, PostgreSQL, Redis and RocketMQ: `python -m benchmarks.peers`.

__main__    the options, and the rounds in which the systems take turns
loads       what is put on each system; what one run found
table       medians over the rounds, ratios to PostgreSQL
processes   processes that end with this one; what is missing here, and how it is had
client      builds and runs the Go client in client/, which speaks to all of them
delaycluster, postgres, redis, rocketmq    how each server is started, and how many messages it keeps
"""
