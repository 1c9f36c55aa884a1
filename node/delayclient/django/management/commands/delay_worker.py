"""`manage.py delay_worker`: runs the tasks of a DelayBackend, some at a time in threads, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any, Final

from delayapi.durations import duration_ms
from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections
from django.utils import timezone
from django.utils.module_loading import import_string

from delayclient import tracing
from delayclient.agent.client import AgentLost, ClusterRefused, Link
from delayclient.django.backend import DelayBackend, Task, TaskResultStatus, result_of

try:  # Django 6
    from django.tasks import task_backends
    from django.tasks.base import TaskContext
    from django.tasks.signals import task_finished, task_started
except ImportError:
    from django_tasks import task_backends
    from django_tasks.base import TaskContext
    from django_tasks.signals import task_finished, task_started

_log: Final = logging.getLogger("delayclient.django")
_LOOK_S: Final = 0.5
"""How soon a signal is seen."""


class Command(BaseCommand):
    help = "Runs the tasks that are due"

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--backend", default="default", help="of TASKS")
        parser.add_argument("--queue", action="append", help="may be repeated; default: all queues of the backend")
        parser.add_argument("--threads", type=int, default=4, help="tasks at a time")

    def handle(self, *_: Any, **options: Any) -> None:
        backend = task_backends[options["backend"]]
        if not isinstance(backend, DelayBackend):
            raise CommandError(f"TASKS[{options['backend']!r}] is not a {DelayBackend.__name__}")
        if options["threads"] < 1:
            raise CommandError("--threads: at least 1")
        queues = options["queue"] or sorted(backend.queues)
        if not queues:
            raise CommandError(f"QUEUES of TASKS[{options['backend']!r}] is empty: say which queues, by --queue")
        self._stopped = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            self._work(backend, queues, options["threads"])
        except (ClusterRefused, AgentLost) as error:  # a supervisor starts this again
            raise CommandError(str(error)) from None

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _work(self, backend: DelayBackend, queues: list[str], threads: int) -> None:
        link = backend.link()
        link.send({"op": "room", "messages": threads})
        request = {"op": "consume", "group": backend.option("group"), "lease_ms": duration_ms(backend.option("lease"))}
        for queue in queues:
            link.call({**request, "topic": backend.topic(queue)})
        self.stdout.write(f"ready: {', '.join(queues)}")
        running: set[Any] = set()
        with ThreadPoolExecutor(threads) as pool:
            while not self._stopped:
                found = link.delivery(_LOOK_S)
                if found is not None:
                    running.add(pool.submit(self._settle, link, backend, *found))
                running = {future for future in running if not future.done()}
            for queue in queues:
                link.send({"op": "leave", "topic": backend.topic(queue)})
            wait(running)
        link.call({"op": "close"})  # gives back what arrived and was not begun

    def _settle(self, link: Link, backend: DelayBackend, header: dict[str, Any], body: bytes) -> None:
        error: BaseException | None
        try:
            error = run(backend, body, header)
        except ImportError as unknown:  # a worker of another version, beside this one or after it, may know it
            _log.warning("%s: not a task of this version of the project, it comes again: %s", header["handle"], unknown)
            op, error = "retry", unknown
        except BaseException as wrong:  # also an import that exits: what is not settled keeps its place for ever
            _log.exception("%s: not a task that this project can run, it is a dead letter now", header["handle"])
            op, error = "dead", wrong
        else:
            op = "ack" if error is None else "retry" if backend.option("retry") else "dead"
        try:
            link.send({"op": op, "tags": [header["tag"]], "reason": "" if error is None else repr(error)})
        except AgentLost as lost:
            _log.warning("task %s may run again: %s", header["key"], lost)


def run(backend: DelayBackend, body: bytes, header: dict[str, Any]) -> BaseException | None:
    """Runs one task; returns what it raised. Raises what is wrong with the message."""
    message = json.loads(body)
    task = import_string(message["task"])
    if not isinstance(task, Task):
        raise TypeError(f"{message['task']} is not a task")
    result = result_of(task, message["id"], message["args"], message["kwargs"], backend.alias)
    result.worker_ids.extend([f"{socket.gethostname()}-{os.getpid()}"] * header["attempt"])
    now = timezone.now()
    for name, value in (("status", TaskResultStatus.RUNNING), ("started_at", now), ("last_attempted_at", now)):
        object.__setattr__(result, name, value)
    task_started.send(DelayBackend, task_result=result)
    close_old_connections()
    failed: BaseException | None
    try:
        context = [TaskContext(task_result=result)] if task.takes_context else []
        with tracing.processing(SimpleNamespace(**header), backend.option("group")):
            task.call(*context, *result.args, **result.kwargs)
        failed, status = None, TaskResultStatus.SUCCESSFUL
    except BaseException as error:  # sys.exit() in a task ends the task, not its thread alone
        _log.exception("task %s (%s) failed in attempt %d", result.id, message["task"], header["attempt"])
        failed, status = error, TaskResultStatus.FAILED
    finally:
        close_old_connections()
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", status)
    task_finished.send(DelayBackend, task_result=result)
    return failed
