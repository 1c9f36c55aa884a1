"""`delayctl bench w1 | ... | w5 | w9 | w10`: the workloads of docs/benchmarks.md, one a command."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import click
from delayctl.common import FAILED, UNREACHABLE, FormerOptions, fail, progress, put_json

if TYPE_CHECKING:
    from benchmarks.workloads.load import Progress
    from benchmarks.workloads.target import Target

Command = TypeVar("Command", bound=Callable[..., Any])
Fields: TypeAlias = Mapping[str, Any]

BODY_BYTES = 256
QUEUES = 8
DELIVERY_FAULTS = ("early", "missing", "duplicates")
_TIMEOUT = click.option("--timeout", type=click.FloatRange(1), default=60.0, help="Seconds until it counts as failed.")


@click.group("bench", context_settings={"show_default": True})
def bench() -> None:
    """Measure a node: W1 enqueue, W2 herd, W3 lateness, W4 restart after kill -9, W5 footprint, W9 and W10 many clients
    with a message a request.

    A workload starts a node of its own in a temporary directory and removes both afterwards. With --endpoint, W1 to W3
    and W9 run against a cluster that is there already; $DELAYCTL_ENDPOINT is not read, so that no load comes by
    accident. Exit status 1 when a message was early, missing or delivered twice.
    """


def _options(
    *, messages: int | tuple[int, ...] | None, queues: int = QUEUES, elsewhere: bool = True
) -> Callable[[Command], Command]:
    """The options that all workloads share. messages: the default; several of them for an option that repeats."""
    several = isinstance(messages, tuple)
    options = [
        click.option(
            "--messages", type=click.IntRange(1), default=messages, multiple=several, help="How many messages."
        ),
        click.option("--body-bytes", type=click.IntRange(1, 1 << 20), default=BODY_BYTES, help="Size of each body."),
        click.option("--queues", type=click.IntRange(1, 1000), default=queues, help="Shards of the own node."),
        click.option(
            "--directory",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Where the own node's temporary directory is made: on the disk to measure [default: the system's].",
        ),
        click.option("--port", type=click.IntRange(0, 65_435), default=0, help="Of the own node; 0: any free one."),
        click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines."),
    ]
    if elsewhere:
        options += [
            click.option("--endpoint", metavar="H:P", help="A cluster that runs already, instead of an own node."),
            click.option("--topic", default="bench", help="The topic there."),
        ]

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@bench.command()
@_options(messages=4_000_000)
@click.option("--batch", type=click.IntRange(1, 65_536), default=65_536, help="Messages in one send_batch().")
@click.option("--at-once", type=click.IntRange(1), help="send_batch() calls unanswered [default: by --batch].")
@click.option("--send", "one_by_one", is_flag=True, help="One Producer.send() a message instead of send_batch().")
def w1(batch: int, at_once: int | None, one_by_one: bool, **options: Any) -> None:
    """Enqueue messages that are due within half an hour."""
    from benchmarks.workloads import w1 as workload

    settings = workload.W1Settings(
        messages=options["messages"],
        body_bytes=options["body_bytes"],
        batch=0 if one_by_one else batch,
        at_once=0 if one_by_one else at_once or workload.at_once(batch),
    )

    _run("w1", asdict(settings), partial(workload.run, settings), options)


@bench.command()
@_options(messages=200_000)
@click.option("--each", is_flag=True, help="Through the Consumer a message at a time, instead of receive_batch().")
@_TIMEOUT
def w2(each: bool, timeout: float, **options: Any) -> None:
    """Herd: all due at one instant, delivered to this process."""
    from benchmarks.workloads import w2 as workload

    settings = workload.W2Settings(
        messages=options["messages"],
        body_bytes=options["body_bytes"],
        each=each,
        timeout_seconds=timeout,
    )

    _run("w2", asdict(settings), partial(workload.run, settings), options, faults=DELIVERY_FAULTS)


@bench.command()
@_options(messages=None)
@click.option("--seconds", type=click.FloatRange(1), default=30.0, help="How long messages are sent.")
@click.option("--rate", type=click.IntRange(1), default=1_000, help="Messages a second.")
def w3(seconds: float, rate: int, **options: Any) -> None:
    """Steady flow with due times random to the millisecond: lateness. --messages: instead of --seconds."""
    from benchmarks.workloads import w3 as workload

    messages = options["messages"] or round(rate * seconds)
    settings = workload.W3Settings(
        messages=messages,
        body_bytes=options["body_bytes"],
        rate=rate,
    )

    _run("w3", asdict(settings), partial(workload.run, settings), options, faults=DELIVERY_FAULTS)


@bench.command()
@_options(messages=10_000_000, elsewhere=False)
@click.option("--settle", type=click.FloatRange(0), default=0.0, help="Seconds between the last message and the kill.")
@_TIMEOUT
def w4(settle: float, timeout: float, **options: Any) -> None:
    """Restart after kill -9 with many messages pending."""
    from benchmarks.workloads import w4 as workload

    settings = workload.W4Settings(
        messages=options["messages"],
        body_bytes=options["body_bytes"],
        settle_seconds=settle,
        timeout_seconds=timeout,
    )

    _run("w4", asdict(settings), partial(workload.run, settings), options, faults=("lost",))


@bench.command()
@_options(messages=(1_000_000, 10_000_000), elsewhere=False)
@click.option(
    "--settle", type=click.FloatRange(0), default=35.0, help="Seconds before measuring: a checkpoint and more."
)
def w5(settle: float, **options: Any) -> None:
    """Footprint: disk and memory with many pending. --messages may be repeated: measured at each, ascending."""
    from benchmarks.workloads import w5 as workload

    steps = tuple(sorted(set(options["messages"])))
    settings = workload.W5Settings(messages=steps, body_bytes=options["body_bytes"], settle_seconds=settle)

    def fields_of(result: workload.W5Result) -> Fields:
        return asdict(result.steps[-1]) | asdict(result)

    shown = asdict(settings) | {"messages": steps[-1]}
    _run("w5", shown, partial(workload.run, settings), options, fields_of=fields_of)


_CLIENTS = click.option("--clients", type=click.IntRange(1, 10_000), default=200, help="Callers, one request each.")
_CONNECTIONS = click.option(
    "--connections", type=click.IntRange(1, 10_000), help="Connections that they share [default: one each]."
)


@bench.command()
@_options(messages=20_000)
@_CLIENTS
@_CONNECTIONS
@click.option("--stream", is_flag=True, help="EnqueueStream instead of unary calls.")
@click.option("--window", type=click.IntRange(1, 16), default=1, help="Requests that a stream keeps unanswered.")
def w9(clients: int, connections: int | None, stream: bool, window: int, **options: Any) -> None:
    """Many producers, a message a request. Another language's client costs less: benchmarks/peers."""
    from benchmarks.workloads import singles

    if window > 1 and not stream:
        raise click.UsageError("w9: --window is of a --stream; a unary call is one request")
    settings = singles.SinglesSettings(
        messages=options["messages"],
        body_bytes=options["body_bytes"],
        clients=clients,
        connections=min(clients, connections or clients),
        window=window if stream else 0,
    )

    _run("w9", asdict(settings), partial(singles.store, settings), options)


@bench.command()
@_options(messages=10_000, elsewhere=False)
@_CLIENTS
@_CONNECTIONS
def w10(clients: int, connections: int | None, **options: Any) -> None:
    """Many consumers: each receives one message, acknowledges it, and asks again."""
    from benchmarks.workloads import singles

    settings = singles.SinglesSettings(
        messages=options["messages"],
        body_bytes=options["body_bytes"],
        clients=clients,
        connections=min(clients, connections or clients),
    )

    _run("w10", asdict(settings), partial(singles.consume, settings), options, faults=("missing", "duplicates"))


# ---------------------------------------------------------------------------------------------- how they run


def _run(
    name: str,
    settings: Fields,
    workload: Callable[[Target, Progress], Coroutine[Any, Any, Any]],
    options: Fields,
    *,
    fields_of: Callable[[Any], Fields] = asdict,
    faults: tuple[str, ...] = (),
) -> None:
    """Runs a workload and prints the fields of its result. Fails when one of the fields `faults` is not 0."""
    from delayclient.errors import DelayError, Unavailable
    from delaylocal import LocalClusterError

    from benchmarks.workloads import machine
    from benchmarks.workloads.target import elsewhere, own_node

    former = FormerOptions.of_command()
    place = former.find_place()
    as_json = options["as_json"] or former.as_json
    if place.kube_text:
        raise click.UsageError(f"{name} takes no --kube: a port-forward would be what is measured")
    endpoint = None
    if "endpoint" in options:
        endpoint = options["endpoint"] or place.endpoint
    elif place.endpoint:
        raise click.UsageError(f"{name} runs against a node of its own: it takes no --endpoint")
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        # The bar is drawn seldom, unlike those of other commands: by the process that is measured.
        bar = progress(name, settings["messages"], as_json=as_json, draws_per_second=2)
        with machine.StallWatch() as stalls, bar as done:
            if endpoint:
                target = asyncio.run(elsewhere(endpoint, options["topic"]))
                result = asyncio.run(workload(target, done))
            else:
                with own_node(options["queues"], options["directory"], options["port"]) as target:
                    result = asyncio.run(workload(target, done))
    except Unavailable as error:
        fail(str(error), UNREACHABLE)
    except (LocalClusterError, DelayError, TimeoutError) as error:
        fail(str(error), FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)
    fields = {
        "workload": name,
        **settings,
        "queues": target.queues,
        **fields_of(result),
        "stalled_seconds": stalls.longest_s,
    }
    if as_json:
        put_json(fields)
    else:
        click.echo("\n".join(_lines(fields)))
    wrong = [f"{fields[fault]} {fault}" for fault in faults if fields[fault]]
    if wrong:
        fail(f"{name}: {', '.join(wrong)}", FAILED)


def _terminated(*_: object) -> NoReturn:
    sys.exit(143)  # unwinds: the node and its directory go


def _lines(fields: Fields, indent: str = "") -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}: {', '.join(f'{part} {_text(number)}' for part, number in value.items())}"
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            for step in value:
                yield f"{indent}{name}: {', '.join(f'{part} {_text(number)}' for part, number in step.items())}"
        else:
            yield f"{indent}{name}: {_text(value)}"


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.3g}" if abs(value) < 1 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
