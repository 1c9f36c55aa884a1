"""Tens of thousands of random requests to every RPC's handler of a live node: a typed refusal or a right answer.

Replay a failure with DELAY_FUZZ_SEED; it prints the request's bytes. Requests come in bursts, up to eight at once;
between bursts what is stored is compared with what was accepted, message by message.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from delayapi.errors import CODES
from delayapi.proto.delay.v1 import delay_pb2 as pb
from delaynode.server.operations import STREAMED
from delayregistry.model import TopicSpec
from delayregistry.security import Operation

from tests.serve.support.client import METHODS
from tests.serve.support.fuzz_inside import Aborted, Inside, OneNode
from tests.serve.support.fuzz_model import KEEPER, Model
from tests.serve.support.fuzz_requests import QUEUES, Maker
from tests.serve.support.fuzz_wire import Wire

SEED = int(os.environ.get("DELAY_FUZZ_SEED", "1"))
CASES = int(os.environ.get("DELAY_FUZZ_INSIDE_CASES", "80000"))
RUNS = 4
CHECK_EVERY = 500  # cases

SERVICE = pb.DESCRIPTOR.services_by_name["DelayService"]
INPUTS = {rpc.name: rpc.input_type for rpc in SERVICE.methods}
STREAMS = ("EnqueueStream", "ReceiveStream", "CallStream")
DOCUMENTED = set(re.findall(r"^\| `([A-Z_]+)` \|", (Path(__file__).parents[3] / "docs/errors.md").read_text(), re.M))
NEVER = {"SHARD_DAMAGED", "NOT_SERVING", "NOT_MASTER", "NOT_ENOUGH_REPLICAS", "DISK_FULL"}  # this node is well
TROUBLE = ("internal-error", "shard-damaged", "term-failed", "copy-damaged")


class Fuzz:
    """One node, one seed."""

    def __init__(self, seed: int, inside: Inside, model: Model) -> None:
        self.seed = seed
        self.choose = random.Random(seed)
        self.inside = inside
        self.model = model
        uids = [
            spec.uid for spec in sorted((s.spec for s in inside.node.routes.objects.values()), key=lambda s: s.queue)
        ]
        self.maker = Maker(seed, uids, model)
        self.wire = Wire(self.choose)
        self.done = 0
        self.answered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def request(self) -> tuple[str, bytes]:
        kind = self.choose.random()
        if kind < 0.12:
            method = self.choose.choice([name for name in INPUTS if name not in STREAMS])
            if method == "CheckAccess" and self.choose.random() < 0.5:  # by chance nothing names an operation
                asked = pb.CheckAccessRequest(operation=self.choose.choice([*Operation]), topic="t", group="g")
                return method, asked.SerializeToString()
            return method, self.wire.message(INPUTS[method])
        method, asked = self.maker.call()
        data = asked.SerializeToString()
        if kind < 0.40:
            data = self.wire.spoiled(data)
        return method, data

    async def case(self, method: str, data: bytes) -> None:
        leave = 0.02 if self.choose.random() < 0.02 else None
        try:
            kept = ("Enqueue", "Cancel", "Reschedule", "TriggerSchedule", "BackfillSchedule")
            if leave is not None and method not in kept:  # it may have been done
                answer = await self.inside.call(method, data, leave_after_s=leave)
            else:
                answer = await self.inside.call(method, patient(method, data))
            if isinstance(answer, bytes):
                self.model.note(method, data, answer)
                self.answered[method] += 1
            elif isinstance(answer, Aborted):
                self.refused[method] += 1
                check_refusal(answer)
        except BaseException as error:
            shown = data if len(data) <= 4_000 else data[:4_000] + b"..."
            error.add_note(f"seed {self.seed}, case {self.done}: {method} {shown!r}")
            raise

    async def stream(self) -> None:
        """A stream of requests: each has its answer, or one is refused and ends it."""
        count = self.choose.choice((1, 3, 20))
        kind = self.choose.random()
        if kind < 0.2:
            await self.calls(count)
        elif kind < 0.7:
            requests = [self.maker.enqueue().SerializeToString() for _ in range(count)]
            requests = [self.wire.spoiled(one) if self.choose.random() < 0.3 else one for one in requests]
            answers, ended = await self.inside.stream("EnqueueStream", requests)
            assert ended is None
            assert len(answers) == count
            for data, answer in zip(requests, map(pb.EnqueueResponse.FromString, answers), strict=True):
                if answer.HasField("error"):
                    self.refused["EnqueueStream"] += 1
                    assert answer.error.reason in DOCUMENTED - NEVER, f"{answer.error} for {data!r}"
                    assert answer.error.code == CODES[answer.error.reason].value[0]
                else:
                    self.answered["EnqueueStream"] += 1
                    self.model.enqueued(pb.EnqueueRequest.FromString(data), answer)
        else:
            asked = pb.ReceiveRequest(topic="t", queue=self.choose.randrange(QUEUES), group="g").SerializeToString()
            requests = [self.wire.spoiled(asked) if self.choose.random() < 0.2 else asked for _ in range(count)]
            answers, ended = await self.inside.stream("ReceiveStream", [patient("Receive", one) for one in requests])
            left = b"" in requests  # then the one before may have no answer
            wanted = requests.index(b"") if left else count
            assert ended is not None or wanted - left <= len(answers) <= wanted
            self.answered["ReceiveStream"] += len(answers)
            if ended is not None:
                self.refused["ReceiveStream"] += 1
                check_refusal(ended)
        self.done += count

    async def calls(self, messages: int) -> None:
        """A stream of calls of all methods: each has one answer, and an error ends nothing."""
        asked: dict[int, tuple[str, bytes]] = {}
        sent = []
        for _ in range(messages):
            message = pb.Calls()
            for _ in range(self.choose.choice((0, 1, 4))):
                method, data = self.request()
                message.call.add(id=len(asked) + 1, method=method, request=data)
                asked[len(asked) + 1] = method, data
            sent.append(message.SerializeToString())
        answers, ended = await self.inside.stream("CallStream", sent)
        assert ended is None
        found = [one for data in answers for one in pb.Answers.FromString(data).answer]
        assert sorted(one.id for one in found) == sorted(asked)
        for answer in found:
            method, data = asked[answer.id]
            if answer.HasField("error"):
                self.refused["CallStream"] += 1
                assert answer.error.reason in DOCUMENTED - NEVER, f"{answer.error} for {method} {data!r}"
                assert answer.error.code == CODES[answer.error.reason].value[0]
            else:
                assert method in STREAMED
                self.answered["CallStream"] += 1
                self.model.note(method, data, answer.response)

    async def run(self, cases: int) -> None:
        checked = 0
        while self.done < cases:
            if self.choose.random() < 0.02:
                await self.stream()
            burst = [self.request() for _ in range(self.choose.choice((1, 2, 8)))]
            self.done += len(burst)
            await asyncio.gather(*(self.case(*one) for one in burst))
            if self.done >= checked + CHECK_EVERY:
                checked = self.done
                await self.check()
        await self.check()

    async def check(self) -> None:
        await self.model.check(self.inside)
        assert not [event for event in self.inside.log if event[0] in TROUBLE]
        flow = self.inside.node.flow
        assert (flow.coming_in.used, flow.going_out.used) == (0, 0), "bytes of calls that are over are still held"


def patient(method: str, data: bytes) -> bytes:
    """The same without a long wait for messages: of a repeated field the last one counts."""
    if method not in ("Fetch", "Receive"):
        return data
    try:
        asked = METHODS[method][0].FromString(data)
    except Exception:
        return data
    return data if asked.wait_ms <= 20 else data + b"\x30\x05"


def check_refusal(refused: Aborted) -> None:
    assert refused.reason in DOCUMENTED - NEVER, str(refused)
    assert refused.code is CODES[refused.reason]
    assert refused.message


async def live(directory: Path, seed: int, cases: int) -> Fuzz:
    registry = OneNode((TopicSpec("t", QUEUES, max_attempts=4),))
    inside = await Inside.start(directory, registry)
    loop_errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
    model = Model(QUEUES)
    try:
        for queue in range(QUEUES):
            await inside.ask("Receive", pb.ReceiveRequest(topic="t", queue=queue, group=KEEPER), pb.MessageBatch)
        fuzz = Fuzz(seed, inside, model)
        await fuzz.run(cases)
    finally:
        await inside.stop()
    again = await Inside.start(directory, registry)
    try:
        await model.check(again)
    finally:
        await again.stop()
    assert not loop_errors
    return fuzz


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", range(RUNS))
def test_every_rpc_refuses_or_answers_rightly_and_only_what_was_accepted_is_stored(run: int, tmp_path: Path) -> None:
    cases = CASES // RUNS
    fuzz = asyncio.run(live(tmp_path, 1_000 * SEED + run, cases))
    answered, refused = fuzz.answered.total(), fuzz.refused.total()
    print(f"fuzz: {answered} answered, {refused} refused, {fuzz.model.stored} messages stored")
    assert min(answered, refused) > cases // 10
    if cases >= 10_000:
        assert set(fuzz.answered) == set(fuzz.refused) == set(INPUTS)


def test_a_refusal_that_nobody_documented_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check_refusal(Aborted(grpc.StatusCode.INTERNAL, "oops"))
    with pytest.raises(AssertionError):
        check_refusal(Aborted(grpc.StatusCode.UNKNOWN, "Unexpected <class 'KeyError'>"))
