"""Django's tasks (DEP 14) as delayed messages: `run_after` is the message's due, the task's id its key.

A message's body is {"id", "task", "args", "kwargs"} as JSON; `task` is the path of the function.
"""

from __future__ import annotations

import json
import math
import uuid
from typing import Any, Final

from django.utils import timezone

from delayclient import tracing
from delayclient.agent.client import Link, connect

try:  # Django 6
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskResult, TaskResultStatus
    from django.tasks.signals import task_enqueued
except ImportError:
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskResult, TaskResultStatus
    from django_tasks.signals import task_enqueued

DEFAULTS: Final = {
    "endpoints": ["127.0.0.1:7070"],
    "topic_prefix": "",
    "group": "django",
    "lease": "60s",
    "retry": False,
}
ACCESS: Final = ("tls", "token_file", "token")


class DelayBackend(BaseTaskBackend):
    """A queue is a topic. Results are not kept: a task that fails is a dead letter of its group."""

    supports_defer = True
    supports_async_task = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = sorted(set(self.options) - {*DEFAULTS, *ACCESS})
        if unknown:
            known = ", ".join([*DEFAULTS, *ACCESS])
            raise ValueError(f"TASKS[{alias!r}]: unknown OPTIONS: {', '.join(unknown)}; there are {known}")
        self._access = {name: self.options[name] for name in ACCESS if name in self.options}
        self._link: Link | None = None

    def option(self, name: str) -> Any:
        return self.options.get(name, DEFAULTS[name])

    def topic(self, queue: str) -> str:
        return f"{self.option('topic_prefix')}{queue}"

    def link(self) -> Link:
        """A new one. Raises ClusterRefused, AgentLost."""
        return connect(self.option("endpoints"), self._access)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Returns once the task is stored. Raises ClusterRefused, AgentLost."""
        self.validate_task(task)
        result = result_of(task, uuid.uuid4().hex, args, kwargs, self.alias)
        body = {"id": result.id, "task": task.module_path, "args": result.args, "kwargs": result.kwargs}
        call = {"op": "send", "topic": self.topic(task.queue_name), "key": result.id, "tag": task.name}
        if task.run_after is not None:
            after = task.run_after
            call["at"] = math.ceil(
                (timezone.make_aware(after) if timezone.is_naive(after) else after).timestamp() * 1000
            )
        with tracing.sending(call["topic"], None) as properties:
            self._call({**call, "properties": properties}, json.dumps(body).encode())
        object.__setattr__(result, "enqueued_at", timezone.now())
        task_enqueued.send(type(self), task_result=result)
        return result

    def cancel(self, result_id: str, queue_name: str = "default") -> bool:
        """Takes back a task that has not begun; false: it is not pending."""
        return bool(self._call({"op": "cancel", "key": result_id, "topic": self.topic(queue_name)})["cancelled"])

    def _call(self, request: dict[str, Any], payload: bytes = b"") -> dict[str, Any]:
        if self._link is None or not self._link.usable:
            self._link = self.link()
        try:
            return self._link.call(request, payload)[0]
        except ConnectionError:
            self._link = None  # the next call gets a new agent
            raise


def result_of(task: Any, result_id: str, args: Any, kwargs: Any, alias: str) -> Any:
    return TaskResult(
        task=task,
        id=result_id,
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=alias,
        errors=[],
        worker_ids=[],
    )


__all__ = ["DelayBackend", "Task", "TaskResultStatus", "result_of"]
