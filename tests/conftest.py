"""What every test's process needs before gRPC is imported."""

import os

from hypothesis import HealthCheck, settings

# gRPC's handlers around fork() are for children that go on with gRPC. Ours exec at once. With the handlers 30 of 200
# died of a signal before that, while other threads were in gRPC: Spark's JVM "exited before sending its port".
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# A test that is held up by others on the machine has not failed: speed is for benchmarks/.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
