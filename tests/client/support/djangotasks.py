"""The tasks of djangoworld.py: each writes a line into the file that LOG names."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

try:  # Django 6
    from django.tasks import task
except ImportError:
    from django_tasks import task


def say(*words: object) -> None:
    with open(os.environ["LOG"], "a") as log:
        log.write(" ".join(map(str, words)) + "\n")


@task
def note(name: str, due_s: float = 0.0) -> None:
    say(name, time.time() - due_s)


@task
def flight(index: int, body: str, due_s: float) -> None:
    say("flight", index, hashlib.sha256(body.encode()).hexdigest(), time.time() - due_s)


@task(takes_context=True)
def again(context: Any, fails: int) -> None:
    say("try", context.attempt, time.time())
    if context.attempt <= fails:
        raise RuntimeError(f"attempt {context.attempt}")


@task(takes_context=True)
def long(context: Any, name: str, seconds: float) -> None:
    say("begin", name, context.attempt)
    time.sleep(seconds)
    say("end", name)


@task(takes_context=True)
def stuck(context: Any, name: str) -> None:
    """In its first attempt, until its worker is killed."""
    say("begin", name, context.attempt)
    time.sleep(60 if context.attempt == 1 else 0)
    say("end", name)
