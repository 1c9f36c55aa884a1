"""apache.rocketmq.v2.MessagingService: the door for official clients of Apache RocketMQ 5 (docs/rocketmq.md).

service     each call, and what it does with the doors' core
messages    their messages from and to delay.v1's; pure
settings    what clients are told at their start; pure
routes      nodes as brokers
clients     who has a Telemetry stream here
leases      renews what push consumers work on
statuses    refusals as the protocol's codes; pure
"""
