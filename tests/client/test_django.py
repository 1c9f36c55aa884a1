"""Django's tasks with a real node: the project of docs/examples/django, its worker in a process of its own.

Here it is this Python, on 3.11 with the package django-tasks. `DELAY_DJANGO_PYTHON=python3.13 pytest
tests/client/test_django.py` makes an environment of that one with the newest Django, which has tasks itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from delayclient import sync
from delayclient.django.backend import DelayBackend
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "docs" / "examples" / "django"
OTHER_PYTHON = os.environ.get("DELAY_DJANGO_PYTHON")

TRACED = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

spans = open(os.environ["SPANS"], "a")
line = lambda span: span.to_json(indent=None) + "\\n"
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=spans, formatter=line)))
"""
"""What OpenTelemetry's agent does as a program starts; the SDK's own agent inherits it."""


def wait(what: Callable[[], object], about: Path) -> None:
    end_s = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end_s, about.read_text()[-3000:]
        time.sleep(0.05)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """That runs the project."""
    if OTHER_PYTHON is None:
        return sys.executable
    made = tmp_path / "python" / "bin" / "python"
    subprocess.run([OTHER_PYTHON, "-m", "venv", tmp_path / "python"], check=True)
    subprocess.run([made, "-m", "pip", "install", "--quiet", f"{ROOT}[django]"], check=True)
    subprocess.run([made, "-c", "import django.tasks"], check=True)
    return str(made)


@pytest.mark.timeout(300 if OTHER_PYTHON is None else 900)
def test_tasks_run_when_they_are_due_and_failed_ones_are_dead_letters(tmp_path: Path, python: str) -> None:
    with LocalCluster(tmp_path / "c", nodes=1, topics=[TopicSpec("shop-tasks", 4)]) as cluster:
        cluster.wait_ready()
        endpoint, said = cluster.endpoints[0], tmp_path / "worker"
        environment = os.environ | {"DELAY_ENDPOINT": endpoint, "PAYMENT_TIMEOUT_S": "4", "PYTHONUNBUFFERED": "1"}
        environment |= {"PYTHONPATH": str(tmp_path), "SPANS": str(tmp_path / "spans")}
        environment["DJANGO_SETTINGS_MODULE"] = "settings"  # this process may have another project's
        (tmp_path / "sitecustomize.py").write_text(TRACED)
        (tmp_path / "leaving.py").write_text("raise SystemExit(3)\n")

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            command = [python, "manage.py", *words]
            return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)

        def place(order: str) -> str:
            placed = run("place", order)
            assert placed.returncode == 0, placed.stderr
            return placed.stdout.strip()

        with open(said, "wb") as output, sync.Producer(endpoint) as producer, sync.Admin(endpoint) as admin:
            worker = subprocess.Popen(
                [python, "manage.py", "delay_worker", "--threads", "2"],
                cwd=PROJECT, env=environment, stdout=output, stderr=output,
            )  # fmt: skip
            try:
                wait(lambda: "ready: shop-tasks" in said.read_text(), said)
                for _ in range(2):  # as many as there are threads: what exits keeps no place of the worker
                    producer.send("shop-tasks", b'{"task": "leaving.now", "id": "3", "args": [], "kwargs": {}}')
                environment["PAYMENT_TIMEOUT_S"] = "20"
                paid = place("order-paid")
                (row,) = admin.cancel_by_key("shop-tasks", paid)
                assert row.outcome.name == "CANCELLED"
                environment["PAYMENT_TIMEOUT_S"] = "3"
                for order in ("order-1", "order-2", "nonsense"):
                    place(order)
                for body in (b"{}", b"\xff", b'{"task": "os.getpid", "id": "1", "args": [], "kwargs": {}}'):
                    producer.send("shop-tasks", body)
                producer.send("shop-tasks", b'{"task": "tasks.of_tomorrow", "id": "2", "args": [], "kwargs": {}}')
                for order in ("order-1", "order-2"):  # no whole lines: print() writes text and end of one apart
                    wait(lambda: f"cancelled {order}" in said.read_text(), said)  # noqa: B023
                wait(lambda: sum(queue.dead for queue in admin.groups("shop-tasks", "django")) == 6, said)
                wait(lambda: "not a task of this version" in said.read_text(), said)
                left = lambda: [it.waiting_retry + it.in_flight for it in admin.groups("shop-tasks", "django")]  # noqa: E731
                wait(lambda: sum(left()) == 1, said)
                assert "order-paid" not in said.read_text()
                worker.terminate()
                assert worker.wait(15) == 0, said.read_text()
            finally:
                if worker.poll() is None:
                    worker.kill()
        spans = [json.loads(line) for line in (tmp_path / "spans").read_text().splitlines()]
        sent = {span["context"]["span_id"] for span in spans if span["name"] == "send shop-tasks"}
        done = {str(span["links"][0]["context"]["span_id"]) for span in spans if span["name"] == "process shop-tasks"}
        assert (len(spans), len(sent), len(done)) == (7, 4, 3)  # one is cancelled
        assert done < sent
        (failed,) = (span for span in spans if span["status"]["status_code"] == "ERROR")
        assert failed["attributes"]["messaging.consumer.group.name"] == "django"


def test_a_worker_of_no_queue_says_so() -> None:
    """QUEUES of [] lets tasks have any: a worker can't ask for all that there may be."""
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.client.support.djangosettings"}
    command = [sys.executable, "-m", "django", "delay_worker"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "QUEUES of TASKS['default'] is empty: say which queues, by --queue" in done.stderr


def test_unknown_option_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"TASKS\['x'\]: unknown OPTIONS: endpoint; there are endpoints, "):
        DelayBackend("x", {"OPTIONS": {"endpoint": "a"}})
