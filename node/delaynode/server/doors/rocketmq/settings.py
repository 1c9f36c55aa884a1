"""What a client is told at its start, and every five minutes, in answer to its own settings."""

from __future__ import annotations

from typing import Final

from delayapi.proto.apache.rocketmq.v2 import service_pb2 as mq

from delaynode.server.doors.rocketmq.messages import MAX_BODY_BYTES, duration
from delaynode.server.doors.rocketmq.statuses import Wrong

LONG_POLL_MS: Final = 20_000
RECEIVE_BATCH: Final = 32
SEND_ATTEMPTS: Final = 3
BACKOFFS_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
"""Of a message that a push consumer has not done, by its attempts: RocketMQ's own."""
NO_CUSTOM_BACKOFF: Final = ("HTTP",)  # the Node.js client, which calls itself so, knows exponential backoff alone
MAX_EXPRESSION_CHARS: Final = 16 << 10  # before it is taken apart
CONSUMERS: Final = (mq.PUSH_CONSUMER, mq.SIMPLE_CONSUMER)


def answer(asked: mq.Settings, language: str, max_attempts: int) -> mq.Settings:
    """max_attempts: how often a message is handed out to a group. Raises Wrong: a client of another kind."""
    settings = mq.Settings()
    settings.CopyFrom(asked)
    settings.metric.on = False
    if asked.client_type == mq.PRODUCER:
        settings.publishing.max_body_size = MAX_BODY_BYTES
        settings.publishing.validate_message_type = True
        policy = mq.ExponentialBackoff(initial=duration(10), max=duration(1_000), multiplier=2)
        settings.backoff_policy.CopyFrom(mq.RetryPolicy(max_attempts=SEND_ATTEMPTS, exponential_backoff=policy))
        return settings
    if asked.client_type not in CONSUMERS:
        kind = asked.client_type
        name = mq.ClientType.Name(kind) if kind in mq.ClientType.values() else str(kind)
        raise Wrong(mq.UNRECOGNIZED_CLIENT_TYPE, f"{name}: clients are PRODUCER, PUSH_CONSUMER or SIMPLE_CONSUMER here")
    settings.subscription.fifo = False
    settings.subscription.receive_batch_size = RECEIVE_BATCH
    settings.subscription.long_polling_timeout.CopyFrom(duration(LONG_POLL_MS))
    retries = mq.RetryPolicy(max_attempts=max_attempts)
    if language in NO_CUSTOM_BACKOFF:
        policy = mq.ExponentialBackoff(initial=duration(1_000), max=duration(BACKOFFS_S[-1] * 1_000), multiplier=2)
        retries.exponential_backoff.CopyFrom(policy)
    else:
        retries.customized_backoff.next.extend(duration(seconds * 1_000) for seconds in BACKOFFS_S)
    settings.backoff_policy.CopyFrom(retries)
    return settings


def backoff_ms(asked_ms: int, attempt: int) -> int:
    """How long a message waits after that attempt. The Node.js client takes the seconds that it is told for ms."""
    if asked_ms >= BACKOFFS_S[0] * 1_000:
        return asked_ms
    return BACKOFFS_S[min(attempt, len(BACKOFFS_S)) - 1] * 1_000


def tags_of(expression: mq.FilterExpression) -> tuple[str, ...]:
    """The tags that are asked for; none: all messages. Raises Wrong."""
    if len(expression.expression) > MAX_EXPRESSION_CHARS:
        raise Wrong(
            mq.ILLEGAL_FILTER_EXPRESSION,
            f"it has {len(expression.expression):,} characters; the limit is {MAX_EXPRESSION_CHARS:,}",
        )
    text = expression.expression.strip()
    if expression.type == mq.SQL:
        raise Wrong(
            mq.ILLEGAL_FILTER_EXPRESSION, "SQL92 filters are not known here: filter by tags, or in the consumer"
        )
    if text in ("", "*"):
        return ()
    tags = sorted({tag.strip() for tag in text.split("||")})
    if not all(tags) or any("|" in tag or "*" in tag for tag in tags):
        raise Wrong(mq.ILLEGAL_FILTER_EXPRESSION, f'{text[:100]!r} is not "*", a tag, or tags with || between them')
    return tuple(tags)
