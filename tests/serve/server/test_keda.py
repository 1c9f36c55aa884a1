"""KEDA's external scaler at a node, by the calls that KEDA's own client makes, in its order (external_scaler.go)."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from delayapi.proto.externalscaler import externalscaler_pb2 as keda

from tests.serve.support.client import Client, Msg, Shard, poll

CLIENT = Path(__file__).parents[2] / "doors" / "keda" / "client"

TRIGGER = {
    "scalerAddress": "shared.messages:7072", "group": "mail", "ratePerReplica": "10", "leadSeconds": "60",
    "horizonSeconds": "600", "maxLatenessSeconds": "5",
}  # fmt: skip


@dataclass
class Keda:
    """One trigger of a ScaledObject, as KEDA drives it. prefix: what KEDA puts before a metric's name."""

    client: Client
    metadata: dict[str, str]
    prefix: str = "s0-"
    names: list[str] = field(default_factory=list)

    def ref(self) -> keda.ScaledObjectRef:
        return keda.ScaledObjectRef(name="worker", namespace="shop", scalerMetadata=self.metadata)

    def _call(self, method: str, request: Any, kind: Any) -> Any:
        call = self.client.channel.unary_unary(f"/externalscaler.ExternalScaler/{method}")
        return kind.FromString(call(request.SerializeToString(), timeout=20))

    def specs(self) -> dict[str, float]:
        """Asked when the ScaledObject is new, before anything else. By name, the target of each metric."""
        found = self._call("GetMetricSpec", self.ref(), keda.GetMetricSpecResponse).metricSpecs
        assert all(one.targetSize == one.targetSizeFloat for one in found), "older KEDAs read the one, newer the other"
        return {self.prefix + one.metricName: one.targetSizeFloat or one.targetSize for one in found}

    def poll(self, name: str = "s0-replicas") -> tuple[float, bool]:
        """Its own poll, and the HPA's: the metric by its name without the prefix, and whether to be active."""
        request = keda.GetMetricsRequest(scaledObjectRef=self.ref(), metricName=name.removeprefix(self.prefix))
        (value,) = self._call("GetMetrics", request, keda.GetMetricsResponse).metricValues
        figure = value.metricValueFloat if value.metricValueFloat > 0 else value.metricValue
        assert value.metricValue == value.metricValueFloat
        return figure, self._call("IsActive", self.ref(), keda.IsActiveResponse).result

    @contextmanager
    def pushed(self) -> Iterator[queue.Queue[bool]]:
        call = self.client.channel.unary_stream("/externalscaler.ExternalScaler/StreamIsActive")
        stream, told = call(self.ref().SerializeToString()), queue.Queue()

        def read() -> None:
            try:
                for body in stream:
                    told.put(keda.IsActiveResponse.FromString(body).result)
            except grpc.RpcError:
                pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield told
        finally:
            stream.cancel()
            reader.join(20)


def test_workers_are_asked_for_before_the_herd_and_none_while_nothing_comes(client: Client) -> None:
    scaler = Keda(client, TRIGGER | {"topic": "herds"})
    shard = Shard(client, "herds", 0)
    assert scaler.specs() == {"s0-replicas": 1.0}
    assert scaler.poll() == (0, False)
    with scaler.pushed() as told:
        assert told.get(timeout=20) is False, "at first what is so is told"
        far = shard.send(Msg(delay_ms=3_600_000))
        assert scaler.poll() == (0, False)
        herd = shard.send(*(Msg(delay_ms=300_000) for _ in range(2_000)))
        assert told.get(timeout=20) is True, "before the first message is due"
        count, active = poll("some are asked for", lambda: scaler.poll() if scaler.poll()[0] else None)
        assert active
        assert count in (1, 2), "2,000 in 240 s, of which a minute is its slot's: 10/s * 245 s, or 185 s"
        shard.cancel(herd)
        shard.cancel(far)
        soon = shard.send(*(Msg(delay_ms=55_000) for _ in range(2_000)))
        assert poll("the herd is near", lambda: scaler.poll()[0] == 40) is True
        shard.cancel(soon)
        assert told.get(timeout=20) is False
    assert poll("none is needed", lambda: scaler.poll() == (0, False))


def test_what_waits_keeps_workers_until_it_is_done(client: Client) -> None:
    scaler, shard = Keda(client, TRIGGER | {"topic": "waits"}), Shard(client, "waits", 0)
    shard.send(*(Msg() for _ in range(200)))
    assert poll("a group that there is not yet is begun by one", lambda: scaler.poll() == (1, True))
    got = shard.receive_all(1, group="mail")
    assert poll("what waits counts", lambda: scaler.poll() == (4, True))
    got += shard.receive_all(199, group="mail")
    assert poll("what is worked on too", lambda: scaler.poll() == (4, True))
    shard.ack_all(got, group="mail")
    assert poll("all is done", lambda: scaler.poll() == (0, False))


@pytest.mark.parametrize(
    ("changed", "code", "says"),
    [
        ({"ratePerReplica": "many"}, grpc.StatusCode.INVALID_ARGUMENT, "ratePerReplica is 'many': a number from"),
        ({"leadSecond": "5"}, grpc.StatusCode.INVALID_ARGUMENT, "'leadSecond' is not known"),
        ({"group": ""}, grpc.StatusCode.INVALID_ARGUMENT, "group is missing"),
        ({"group": "g" * 5_000}, grpc.StatusCode.INVALID_ARGUMENT, "the group has 5,000 characters"),
        ({"topic": "nothing"}, grpc.StatusCode.NOT_FOUND, "there is no topic 'nothing'"),
    ],
)
def test_nonsense_is_refused_and_never_a_number(
    client: Client, changed: dict[str, str], code: grpc.StatusCode, says: str
) -> None:
    scaler = Keda(client, TRIGGER | {"topic": "herds"} | changed)
    for ask in (scaler.poll, lambda: scaler._call("IsActive", scaler.ref(), keda.IsActiveResponse)):
        with pytest.raises(grpc.RpcError, match=says) as caught:
            ask()
        assert caught.value.code() is code
    call = client.channel.unary_stream("/externalscaler.ExternalScaler/StreamIsActive")
    with pytest.raises(grpc.RpcError, match=says):
        next(call(scaler.ref().SerializeToString(), timeout=20))


def test_other_metrics_and_bytes_are_refused(client: Client) -> None:
    scaler = Keda(client, TRIGGER | {"topic": "herds"})
    with pytest.raises(grpc.RpcError, match="there is no metric 'rate'; there is 'replicas'"):
        scaler.poll("s0-rate")
    for method in ("IsActive", "GetMetricSpec", "GetMetrics"):
        call = client.channel.unary_unary(f"/externalscaler.ExternalScaler/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff\xff\xff", timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


KEDA = "github.com/kedacore/keda/v2@v2.17.2"
PARTS = (
    *("apis", "version"),
    *(
        f"pkg/{it}"
        for it in ("eventreason", "metricscollector", "scalers/externalscaler", "scalers/scalersconfig", "util")
    ),
)
SCALER = ("external_scaler.go", "scaler.go")


@pytest.fixture(scope="module")
def kedas_scaler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program on KEDA's external scaler: its package without the other scalers, which need the libraries of every
    cloud. externalMetricType is in one of these."""
    if os.environ.get("DELAY_KEDA_TESTS") != "yes":
        pytest.skip("DELAY_KEDA_TESTS=yes: KEDA's own code, by Go's module proxy; a minute or two of Go's compiler")

    def go(*words: str, where: Path) -> str:
        done = subprocess.run(["go", *words], cwd=where, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    made = tmp_path_factory.mktemp("keda") / "client"
    shutil.copytree(CLIENT, made)
    found = json.loads(go("mod", "download", "-json", KEDA, where=made.parent))
    source, copy = Path(found["Dir"]), made / "keda"
    for part in PARTS:
        shutil.copytree(source / part, copy / part, ignore=shutil.ignore_patterns("*_test.go"), copy_function=_writable)
    _writable(source / "go.mod", copy / "go.mod")
    for name in SCALER:
        _writable(source / "pkg" / "scalers" / name, copy / "pkg" / "scalers" / name)
    rest = 'package scalers\n\nconst externalMetricType = "External"\n'
    (copy / "pkg" / "scalers" / "rest.go").write_text(rest)
    go("build", "-o", "client", ".", where=made)
    return made / "client"


def _writable(source: Path | str, target: Path | str) -> None:
    """The module cache's files are read-only."""
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_bytes(Path(source).read_bytes())


def test_kedas_own_scaler_is_answered(client: Client, kedas_scaler: Path) -> None:
    def ask(metadata: dict[str, str]) -> dict[str, tuple[str, Any]]:
        words = [str(kedas_scaler), json.dumps(metadata | {"scalerAddress": client.endpoint})]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return {one["call"]: (one["code"], one["answer"]) for one in lines}

    shard = Shard(client, "herds", 0)
    herd = shard.send(*(Msg(delay_ms=50_000) for _ in range(100)))
    found = ask(TRIGGER | {"leadSeconds": "600", "topic": "herds"})
    ((_, (spec,)), (_, pushed), (code, asked)) = (found[call] for call in (
        "GetMetricSpecForScaling", "Run", "GetMetricsAndActivity"))  # fmt: skip
    assert spec["external"] == {
        "metric": {"name": "s0-replicas"}, "target": {"type": "AverageValue", "averageValue": "1"},
    }  # fmt: skip
    assert (code, pushed, asked["active"]) == ("OK", True, True)
    (value,) = asked["values"]
    assert (value["metricName"], value["value"]) == ("s0-replicas", "2")
    shard.cancel(herd)
    refused = ask(TRIGGER | {"topic": "herds", "ratePerReplica": "nan"})
    assert refused["GetMetricSpecForScaling"][1] is None
    assert refused["GetMetricsAndActivity"][0] == "InvalidArgument"
