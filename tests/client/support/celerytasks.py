"""The application of test_celery.py: each task writes a line into the file that LOG names."""

from __future__ import annotations

import hashlib
import json
import os
import time

import delayclient.celery  # noqa: F401
from celery import Celery

app = Celery("tests", broker=os.environ.get("BROKER", "delaycluster://127.0.0.1:1"))
app.conf.update(
    task_ignore_result=True,
    task_default_queue=os.environ.get("QUEUE", "celery"),
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("OPTIONS", "{}")),
)


def say(*words: object) -> None:
    with open(os.environ["LOG"], "a") as log:
        log.write(" ".join(map(str, words)) + "\n")


@app.task
def note(name: str, due_s: float = 0.0) -> None:
    say(name, time.time() - due_s)


@app.task
def flight(index: int, body: str, due_s: float) -> None:
    say("flight", index, hashlib.sha256(body.encode()).hexdigest(), time.time() - due_s)


@app.task(bind=True)
def again(self, times: int) -> None:
    say("try", self.request.retries, os.getpid())
    if self.request.retries < times:
        raise self.retry(countdown=0.5, max_retries=times)


@app.task(bind=True, acks_late=True)
def long(self, name: str, seconds: float) -> None:
    say("begin", name, self.request.delivery_info["redelivered"])
    time.sleep(seconds)
    say("end", name)


@app.task(bind=True, acks_late=True)
def stuck(self, name: str) -> None:
    """In its first attempt, until its worker is killed."""
    say("begin", name, self.request.delivery_info["redelivered"])
    time.sleep(0 if self.request.delivery_info["redelivered"] else 60)
    say("end", name)
