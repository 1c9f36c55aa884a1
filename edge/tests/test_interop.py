"""gRPC's own interop client, in Go, against grpc.testing.TestService behind the edge."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from interopnode import InteropNode

MODULE = Path(__file__).parent / "interop"  # go.mod says which version
CLIENT = "google.golang.org/grpc/interop/client"
GO = "/usr/local/go/bin/go"  # where Go's own archive puts it
CASE_S = 90
# A machine that does other things as well must not fail a soak for its latency.
SOAK = ["-soak_iterations=60", "-soak_num_threads=4", "-soak_per_iteration_max_acceptable_latency_ms=20000",
        "-soak_overall_timeout_seconds=80"]  # fmt: skip

CASES = [
    "empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong", "empty_stream",
    "timeout_on_sleeping_server", "cancel_after_begin", "cancel_after_first_response", "status_code_and_message",
    "special_status_message", "unimplemented_method", "unimplemented_service", "pick_first_unary",
]  # fmt: skip
SOAKS = ["rpc_soak", "channel_soak"]  # the client does not list them
# README.md has the reasons.
LEFT_OUT = {
    "custom_metadata", "orca_per_rpc", "orca_oob", "compute_engine_creds", "service_account_creds", "jwt_token_creds",
    "per_rpc_creds", "oauth2_auth_token", "google_default_credentials", "compute_engine_channel_credentials",
}  # fmt: skip

pytestmark = pytest.mark.timeout(900)  # the first build of the client takes minutes


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go") or shutil.which(GO)
    if go is None:
        pytest.skip("gRPC's interop client needs Go 1.26 or newer: https://go.dev/dl")
    fetched = subprocess.run([go, "list", "-deps", CLIENT], cwd=MODULE, capture_output=True, text=True)
    if fetched.returncode:
        pytest.skip(f"the Go modules of gRPC's interop client can't be had: {fetched.stderr.strip()}")
    binary = tmp_path_factory.mktemp("interop") / "client"
    command = [go, "build", "-mod=readonly", "-buildvcs=false", "-o", binary, CLIENT]
    built = subprocess.run(command, cwd=MODULE, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return binary


@pytest.fixture
def node() -> Iterator[InteropNode]:
    node = InteropNode()
    yield node
    node.stop()
    assert node.faults == []


@pytest.mark.parametrize("case", CASES + SOAKS)
def test_a_case_of_the_interop_client_passes_and_leaves_nothing(case: str, client: Path, node: InteropNode) -> None:
    command = [client, "-server_host=127.0.0.1", f"-server_port={node.edge.port}", f"-test_case={case}"]
    ran = subprocess.run(
        command + SOAK * (case in SOAKS), capture_output=True, text=True, timeout=CASE_S,
        env={"GRPC_GO_LOG_SEVERITY_LEVEL": "info"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    node.wait_at_rest()
    assert node.edge.figures()["panics"] == 0


def test_the_client_has_no_case_that_is_neither_run_nor_left_out(client: Path) -> None:
    told = subprocess.run([client, "-help"], capture_output=True, text=True, timeout=CASE_S).stderr
    cases = set(re.findall(r"^\s+([a-z0-9_]+) ?: ", told.partition("Valid options are")[2], re.MULTILINE))
    assert cases == {*CASES, *LEFT_OUT}
