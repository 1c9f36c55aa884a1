"""Thousands of random requests to MessageService of a live node, in proto and JSON: a typed refusal or a right answer.

Requests are made of what earlier answers had (receipts, handles, page tokens), of what is almost that, and of nonsense;
some are cut or flipped as bytes. In the end every message that was stored, and neither taken back nor moved away, comes
out once to a group that was there from the start. Replay a failure with DELAY_FUZZ_SEED; DELAY_FUZZ_ROWS_CASES sets how
many there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from delayapi.errors import CODES
from delayapi.proto.delay.v1 import messages_pb2 as rows
from delaynode import config as configuration
from delaynode.auth.identity import ANONYMOUS
from delaynode.node.node import Node
from delaynode.server.doors.doors import Doors
from delaynode.server.doors.http_json import KINDS, from_json, to_json
from delaynode.server.handlers.rows import RowCalls
from delaynode.server.service import DelayService
from delaynode.store.errors import Refused
from delayregistry.model import TopicSpec
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from tests.auth.serving import GivenCall, until
from tests.serve.support.fuzz_inside import OneNode

SEED = int(os.environ.get("DELAY_FUZZ_SEED", "1"))
CASES = int(os.environ.get("DELAY_FUZZ_ROWS_CASES", "4000"))
DOCUMENTED = set(re.findall(r"^\| `([A-Z_]+)` \|", (Path(__file__).parents[2] / "docs/errors.md").read_text(), re.M))
NEVER = {"INTERNAL", "SHARD_DAMAGED", "NOT_SERVING", "NOT_MASTER", "NOT_ENOUGH_REPLICAS", "DISK_FULL"}
TOPICS = ("fuzz", "other", "none", "", "x" * 300, "\u00e9")
GROUPS = ("g", "h", "", "g" * 255, "g" * 256, "\u00e9\x00")
TEXTS = ("", "a", "key", "\u00e9" * 90, "\x00\x01", "x" * 5_000)
METHODS = [name for name in KINDS if name != "ReceiveStream"]


class Served:
    """A node in this process, asked through the doors' handlers."""

    def __init__(self, directory: Path) -> None:
        args = ["--node-id", "n0", "--data", str(directory), "--registry", "sqlite:none", "--durability", "async"]
        config = configuration.parse([*args, "--listen", "127.0.0.1:1", "--http", "127.0.0.1:2"])
        topics = (TopicSpec("fuzz", 3, max_attempts=3), TopicSpec("other", 1, deduplicate=True))
        self.events: list[str] = []
        self.node = Node(config, OneNode(topics), lambda event, **fields: self.events.append(event))  # type: ignore[arg-type]
        self.service = DelayService(self.node)
        self.rows = RowCalls(self.service.dispatch)
        self.doors = Doors(self.service, self.rows)
        methods = self.doors.messages.methods()
        self.calls = {**methods.unary, **methods.batches}

    async def call(self, method: str, data: bytes) -> Any:
        """Raises Refused."""
        call = GivenCall(ANONYMOUS)
        answers = self.node.flow.answers(call)
        try:
            return KINDS[method][1].FromString(await self.calls[method](data, call, answers))
        finally:
            answers.dropped()

    def now_ms(self) -> int:
        return self.node.clock.now_ms()


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[Served]:
    one = Served(directory)
    await one.node.read_cluster()
    await one.node.prepare()
    await one.node.start()
    await until(lambda: len(one.node.hosts()) == 4 and one.node.not_ready() is None)
    try:
        yield one
    finally:
        await one.node.stop()
        await one.doors.close()
        await one.rows.close()
        await one.service.dispatch.forwarder.close()


class Maker:
    """Random requests. known: what answers had."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.receipts: list[str] = []
        self.handles: list[str] = []
        self.tokens: list[str] = []
        self.bodies = 0

    def one_of(self, known: list[str]) -> str:
        if not known or self.choose.random() < 0.1:
            return self.choose.choice(TEXTS)
        text = self.choose.choice(known[-200:])
        if self.choose.random() < 0.1 and text:
            at = self.choose.randrange(len(text))
            return text[:at] + self.choose.choice("Az09-_%") + text[at + 1 :]
        return text

    def request(self, method: str) -> Any:
        request = KINDS[method][0]()
        for field in request.DESCRIPTOR.fields:
            if self.choose.random() < 0.85:
                self._fill(request, field.name, method)
        return request

    def _fill(self, request: Any, name: str, method: str) -> None:
        choose = self.choose
        match name:
            case "topic":
                request.topic = choose.choice(TOPICS) if choose.random() < 0.1 else "fuzz"
            case "group":
                request.group = choose.choice(GROUPS)
            case "messages":
                for _ in range(choose.choice((0, 1, 1, 2, 5))):
                    self._fill_message(request.messages.add())
            case "receipts":
                request.receipts.extend(self.one_of(self.receipts) for _ in range(choose.choice((0, 1, 3))))
            case "handles":
                request.handles.extend(self.one_of(self.handles) for _ in range(choose.choice((0, 1, 3))))
            case "page_token":
                request.page_token = self.one_of(self.tokens) if choose.random() < 0.5 else ""
            case "max_messages" | "page_size" | "max_in_flight":
                setattr(request, name, choose.choice((0, 1, 7, 100, 1_000, 1_001, 2**32 - 1)))
            case "wait":
                request.wait.FromMilliseconds(choose.choice((0, 1, 3)))
            case "lease" | "backoff":
                getattr(request, name).FromMilliseconds(choose.choice((0, 1, 20, 60_000, 43_200_001)))
            case "at" | "from" | "to":
                getattr(request, name).FromMilliseconds(choose.choice((0, 1, 1_700_000_000_000, 4_000_000_000_000)))
            case "delay" if request.WhichOneof("when") is None:
                request.delay.FromMilliseconds(choose.choice((0, 1, 50, 86_400_000, 10**14)))
            case "body_format":
                request.body_format = choose.choice((0, 1, 2, 7))
            case "tags" if choose.random() < 0.1:
                request.tags.extend(choose.choice(TEXTS) for _ in range(choose.choice((1, 65))))
            case "key" if method == "Cancel" and choose.random() < 0.2:
                request.key = choose.choice(TEXTS)
            case "dead" | "from_end" | "with_content":
                setattr(request, name, choose.random() < 0.3)

    def _fill_message(self, message: Any) -> None:
        choose = self.choose
        self.bodies += 1
        message.body_text = str(self.bodies)
        if choose.random() < 0.5:
            message.delay.FromMilliseconds(choose.choice((0, 1, 50, 3_600_000, 10**14)))
        elif choose.random() < 0.3:
            message.at.FromMilliseconds(choose.choice((0, 1_700_000_000_000, 4_000_000_000_000)))
        if choose.random() < 0.5:
            message.key, message.tag = choose.choice(TEXTS), choose.choice(TEXTS)
        if choose.random() < 0.2:
            message.properties[choose.choice(TEXTS)] = choose.choice(TEXTS)
        if choose.random() < 0.2:
            message.message_id = choose.choice(("a", "b", "x" * 300))

    def learn(self, answer: Any) -> None:
        """Take receipts, handles and tokens out of an answer."""
        for one in getattr(answer, "deliveries", ()):
            self.receipts.append(one.receipt)
        for one in (*getattr(answer, "messages", ()), *getattr(answer, "results", ())):
            if getattr(one, "handle", ""):
                self.handles.append(one.handle)
        if getattr(answer, "next_page_token", ""):
            self.tokens.append(answer.next_page_token)


class Account:
    """What must be there in the end: by handle, the body of each message that was stored to be due soon."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}
        self.due: dict[str, int] = {}

    def sent(self, request: Any, answer: Any) -> None:
        for message, result in zip(request.messages, answer.results, strict=True):
            if result.handle and request.topic == "fuzz":
                self.stored[result.handle], self.due[result.handle] = message.body_text, result.due.ToMilliseconds()

    def changed(self, handles: list[str], answer: Any) -> None:
        for handle, result in zip(handles, answer.results, strict=True):
            if result.outcome == "CANCELLED":
                self.stored.pop(handle, None)
            elif result.outcome == "RESCHEDULED" and handle in self.stored:
                self.stored[result.handle] = self.stored.pop(handle)
                self.due[result.handle] = result.due.ToMilliseconds()


def check(true: bool, what: str) -> None:
    assert true, what


def test_random_requests_are_refused_or_right(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as node:
            await fuzz(node, CASES)

    asyncio.run(run())


class Asked(Protocol):
    """A node with the topics of TOPICS that there are. events: what it has logged."""

    events: list[str]

    async def call(self, method: str, data: bytes) -> Any: ...  # raises Refused

    def now_ms(self) -> int: ...


async def fuzz(node: Asked, cases: int) -> None:
    """So many requests, and more, up to eight times as many, until each method was answered once: few find a dead
    letter."""
    # No whole schedule is drawn here: tests/serve has those.
    every = {name for name in METHODS if "Schedule" not in name}
    maker, account, answered, refused = Maker(SEED), Account(), Counter[str](), Counter[str]()
    asked = rows.ReceiveMessagesRequest(topic="fuzz", group="keeper", max_messages=1_000, body_format=1)
    await node.call("Receive", asked.SerializeToString())  # the group keeps all that comes
    for case in range(8 * cases):
        if case >= cases and answered.keys() >= every:
            break
        method = maker.choose.choice(("Send", "Receive", *METHODS))
        request = maker.request(method)
        if method == "Cancel":
            request.ClearField("key")  # counted by handles
        data = request.SerializeToString()
        broken = maker.choose.random() < 0.1 and len(data) > 0
        if broken:
            at = maker.choose.randrange(len(data))
            data = data[:at] if maker.choose.random() < 0.5 else data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
            with contextlib.suppress(DecodeError):
                request = KINDS[method][0].FromString(data)
            if method == "Cancel" and request.key:
                continue
        elif maker.choose.random() < 0.3:
            again = from_json(KINDS[method][0], json_format.MessageToJson(request).encode())
            assert again == request, f"case {case}: JSON has changed {request!r}"
        try:
            answer = await node.call(method, data)
        except Refused as error:
            refused[error.reason] += 1
            check(error.reason in DOCUMENTED & CODES.keys() - NEVER, f"case {case}, {method} {request!r}: {error!r}")
            continue
        answered[method] += 1
        maker.learn(answer)
        json.loads(to_json(answer, True))
        if method == "Send":
            account.sent(request, answer)
        elif method in ("Cancel", "Reschedule"):
            account.changed(list(request.handles), answer)
    assert answered.keys() >= every, answered
    assert len(refused) > 5, refused
    now = node.now_ms() + 1_000
    await asyncio.sleep(1)
    expected = Counter(body for handle, body in account.stored.items() if account.due[handle] <= now)
    got: Counter[str] = Counter()
    async with asyncio.timeout(60):
        deadline = time.monotonic() + 20  # a message that was handed out comes again after 30 s
        while True:
            deliveries = (await node.call("Receive", asked.SerializeToString())).deliveries
            got.update(one.body_text for one in deliveries)
            if not deliveries:  # once more, when all that is expected is here
                if not expected - got or time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.05)
    trimmed = expected - got
    assert not got - expected, "what came was stored, and once"
    assert not trimmed, f"{len(trimmed)} of {len(expected)} messages are gone"
    assert not [event for event in node.events if event in ("internal-error", "shard-damaged")]


def test_json_that_was_cut_or_flipped_is_refused_or_means_something() -> None:
    choose, maker = random.Random(SEED), Maker(SEED)
    kinds: Counter[bool] = Counter()
    for case in range(CASES):
        method = choose.choice(METHODS)
        text = json_format.MessageToJson(maker.request(method), indent=None)
        for _ in range(choose.choice((0, 1, 1, 3))):
            at = choose.randrange(len(text) + 1)
            piece = choose.choice(('"', "{", "}", "[", "1e999", "null", ",", ":", "\\ud800", "\x00", "-", "\u00e9"))
            text = choose.choice((text[:at], text[:at] + piece + text[at:], text[:at] + text[at + 1 :]))
        try:
            found = from_json(KINDS[method][0], text.encode("utf-8", "surrogatepass"))
        except Refused as error:
            check(error.reason == "BAD_REQUEST", f"case {case}: {text!r}")
            kinds[False] += 1
            continue
        kinds[True] += 1
        found.SerializeToString()
    assert min(kinds[True], kinds[False]) > CASES / 10, kinds
