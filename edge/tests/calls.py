"""Enqueue requests and calls of the tests."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import grpc
from delayapi.proto.delay.v1 import delay_pb2 as pb
from fakenode import ENQUEUE, ENQUEUE_STREAM


def request(*records: bytes, topic: str = "t", queue: int = 0, time: int = 5, **fields: Any) -> pb.EnqueueRequest:
    n = len(records)
    return pb.EnqueueRequest(
        topic=topic, queue=queue, count=fields.pop("count", n), time=struct.pack(f"<{n}q", *[time] * n),
        size=struct.pack(f"<{n}I", *map(len, records)), records=b"".join(records), **fields,
    )  # fmt: skip


def enqueue(channel: grpc.Channel) -> Callable[..., Any]:
    return channel.unary_unary(ENQUEUE, pb.EnqueueRequest.SerializeToString, pb.EnqueueResponse.FromString)


def enqueue_stream(channel: grpc.Channel) -> Callable[..., Any]:
    return channel.stream_stream(ENQUEUE_STREAM, pb.EnqueueRequest.SerializeToString, pb.EnqueueResponse.FromString)


def unary(channel: grpc.Channel, name: str) -> Callable[..., Any]:
    return channel.unary_unary(f"/test.Test/{name}")


def stream(channel: grpc.Channel, name: str) -> Callable[..., Any]:
    return channel.stream_stream(f"/test.Test/{name}")
