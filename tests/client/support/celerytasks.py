"""The application of test_celery.py: each task writes a line into the file that LOG names."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time

import delayclient.celery  # noqa: F401
from celery import Celery
from celery.exceptions import Reject

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


@app.task(acks_late=True)
def until(file: str) -> None:
    """It is there."""
    say("begin", file)
    while not os.path.exists(file):
        time.sleep(0.05)
    say("end", file)


@app.task(acks_late=True)
def refuse(name: str, requeue: bool) -> None:
    say("refuse", name, time.time())
    raise Reject(name, requeue=requeue)


@app.task(acks_late=True)
def fatal() -> None:
    """By a pool without processes of its own: to its worker."""
    say("fatal")
    os.kill(os.getpid(), signal.SIGKILL)
