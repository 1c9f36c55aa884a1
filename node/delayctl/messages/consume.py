"""`delayctl consume`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click
from delayapi.durations import format_instant
from delayapi.options import DURATION

from delayctl.common import FAILED, CommandSettings, common_options, harmless, put_json, run, text_of

if TYPE_CHECKING:
    from delayclient.consumer.received import ReceivedMessage
    from delayclient.routing.routing import Cluster

_PREFETCH = 65_536


@click.command()
@click.argument("topic")
@click.option("--group", required=True, help="The consumer group; made at first use.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Stop after this long.")
@click.option("--no-ack", is_flag=True, help="Leave them to come again.")
@click.option("--tag", "tags", multiple=True, help="The group's tag filter; may be repeated.")
@click.option("--from-end", is_flag=True, help="A new group starts with what is released from now on.")
@click.option("--invisible", type=DURATION, default="30s", show_default=True, help="How long a message is ours.")
@common_options
def consume(
    settings: CommandSettings,
    topic: str,
    group: str,
    count: int | None,
    timeout: float | None,
    no_ack: bool,
    **options: Any,
) -> None:
    """Receive due messages of TOPIC, and acknowledge them.

    Exit code 1 when the time was over before --count messages had come.
    """

    async def consumed(cluster: Cluster) -> int:
        from delayclient.consumer.consumer import Consumer

        await cluster.route(topic)
        left = count
        deadline = None if timeout is None else time.monotonic() + timeout
        prefetch = min(_PREFETCH, count or _PREFETCH)
        async with Consumer(cluster, topic, group, prefetch=prefetch, **options) as consumer:
            while left is None or left > 0:
                wait = None if deadline is None else max(0.0, deadline - time.monotonic())
                message = await consumer.receive(wait)
                if message is None:
                    break
                _print(settings, message)
                if not no_ack:
                    message.ack()
                left = None if left is None else left - 1
            if not no_ack:
                await consumer.flush()
        if left:
            click.echo(f"delayctl: {(count or 0) - left} of {count} messages came in {timeout:g} s", err=True)
            return FAILED
        return 0

    run(settings, consumed)


def _print(settings: CommandSettings, message: ReceivedMessage) -> None:
    record = message.shown()
    if settings.as_json:
        put_json(
            {
                "topic": message.topic,
                "queue": message.queue,
                "seq": message.seq,
                "due_ms": message.due_ms,
                "received_ms": message.received_ms,
                "key": record.key,
                "tag": record.tag,
                "attempt": message.attempt,
                "body": text_of(record.body),
                "handle": message.handle,
            }
        )
    else:
        marks = "".join(f" {name}={text}" for name, text in (("key", record.key), ("tag", record.tag)) if text)
        late_ms = message.received_ms - message.due_ms
        head = f"{format_instant(message.due_ms)} +{late_ms} ms {message.topic}-{message.queue}/{message.seq}"
        sys.stdout.write(harmless(f"{head}{marks} {text_of(record.body)}\n"))
    # Before it is acknowledged: a message that could not be written out is not done.
    sys.stdout.flush()
