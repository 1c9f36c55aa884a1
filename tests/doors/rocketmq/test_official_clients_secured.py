"""Official clients where nodes ask who calls: by TLS, with a token as their access key, or as their session token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq
from delaylocal import LocalCluster
from delaynode.config import EDGE_VARIABLE
from delayregistry.model import TopicSpec

from tests.doors.rocketmq.support.judges import Judge
from tests.doors.rocketmq.support.nodes import EVERYTHING, TRIED_EDGES
from tests.doors.rocketmq.support.wire import Rocket, message

Start = Callable[..., Judge]


@pytest.fixture(scope="module", params=TRIED_EDGES)
def secured(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(EDGE_VARIABLE, request.param)
        topics = [TopicSpec(f"t{number}", 1) for number in range(6)]
        with LocalCluster(tmp_path_factory.mktemp("secured"), nodes=1, topics=topics, secure=True) as running:
            running.wait_ready()
            yield running


def token_of(cluster: LocalCluster) -> str:
    assert cluster.keys is not None
    return cluster.keys.token_file.read_text().strip()


def ca_of(cluster: LocalCluster) -> Path:
    assert cluster.keys is not None
    return cluster.keys.ca


WAYS = [("python", "key", "t2"), ("java", "token", "t1"), ("java", "key", "t0"), ("node", "key", "t3")]
WAYS += [("node", "token", "t4")]


@pytest.mark.parametrize(("language", "by", "topic"), WAYS if EVERYTHING else WAYS[:2])
def test_official_client_comes_in_by_tls_and_a_token(
    secured: LocalCluster, judge: Start, language: str, by: str, topic: str
) -> None:
    token = token_of(secured)
    key, session = (token, "") if by == "key" else ("any", token)
    one = judge(language, secured.endpoints[0], key=key, token=session, ca=ca_of(secured))
    one.ask("producer", topic)
    one.ask("push", topic, "g", "*")
    one.send(topic, "in")
    one.until(1)


def secured_client(cluster: LocalCluster, **metadata: str) -> Rocket:
    client = Rocket(cluster.endpoints[0], **metadata)
    client.channel = grpc.secure_channel(
        client.endpoint, grpc.ssl_channel_credentials(ca_of(cluster).read_bytes()),
        [("grpc.use_local_subchannel_pool", 1)],
    )  # fmt: skip
    return client


SIGNED = "MQv2-HMAC-SHA1 Credential={}, SignedHeaders=x-mq-date-time, Signature={}"


def test_token_counts_in_each_of_its_places_and_no_other_does(secured: LocalCluster) -> None:
    token = token_of(secured)
    for metadata in (
        {"authorization": f"Bearer {token}"},
        {"authorization": SIGNED.format(token, "0")},
        {"authorization": SIGNED.format("other", "0"), "x-mq-session-token": token},
        {"x-mq-session-token": token},
    ):
        with secured_client(secured, **metadata) as client:
            assert client.send(message("t5")).status.code == mq.OK
    for metadata in (
        {}, {"authorization": SIGNED.format("", "0")}, {"authorization": SIGNED.format("x", token)},
        {"authorization": "Bearer x", "x-mq-session-token": token}, {"authorization": token},
    ):  # fmt: skip
        with secured_client(secured, **metadata) as client, pytest.raises(grpc.RpcError) as refused:
            client.send(message("t5"))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
