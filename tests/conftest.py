"""What every test's process needs before gRPC is imported."""

import os

# gRPC's handlers around fork() are for children that go on with gRPC. Ours exec at once. With the handlers 30 of 200
# died of a signal before that, while other threads were in gRPC: Spark's JVM "exited before sending its port".
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
