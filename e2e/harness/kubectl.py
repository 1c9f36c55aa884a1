"""kubectl against one context, which must be named for tests."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

FOR_TESTS = re.compile(r"kubelab|kind-.+|.+-e2e")
POLL_SECONDS = 0.5
CALL_SECONDS = 60.0
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
PART_OF = "app.kubernetes.io/part-of"
SCENARIOS = "delaycluster-e2e"  # so every namespace that the scenarios make is labelled

Object = dict[str, Any]


class WrongContext(Exception):
    """The kubeconfig points to a cluster that doesn't say that it is for tests."""


class Failed(AssertionError):
    """A command that should have worked; the message has its output."""


def check_context(name: str, allowed: Sequence[str] = ()) -> None:
    """These tests power machines off: they run only where the context's name asks for it."""
    if not (FOR_TESTS.fullmatch(name) or name in allowed):
        raise WrongContext(
            f"context {name!r} is not named for tests (kubelab, kind-*, *-e2e); "
            f"to run on it all the same, and destroy what is there: --allow-context {name}"
        )


def run(argv: Sequence[str], *, stdin: str | None = None, seconds: float = CALL_SECONDS, check: bool = True) -> str:
    """The command's stdout. Raises Failed with its stderr."""
    try:
        done = subprocess.run(argv, input=stdin, text=True, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(argv)[:300]}: no end within {seconds:g} s") from error
    if check and done.returncode:
        raise Failed(f"{' '.join(argv)[:300]} ended with {done.returncode}: {(done.stderr or done.stdout)[-3_000:]}")
    return done.stdout


def wait_until(what: str, probe: Callable[[], Sequence[str]], seconds: float) -> float:
    """Waits until `probe` finds nothing wrong any more: the seconds that it took. Raises Failed with what is left."""
    began = time.monotonic()
    while True:
        try:
            faults: Sequence[str] = probe()
        except Failed as error:  # the API server may be away for a moment
            faults = [str(error)]
        waited = time.monotonic() - began
        if not faults:
            return waited
        if waited > seconds:
            raise Failed(f"{what}: not within {seconds:g} s: {'; '.join(faults)[:3_000]}")
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Kubectl:
    context: str

    def __call__(self, *argv: str, stdin: str | None = None, seconds: float = CALL_SECONDS, check: bool = True) -> str:
        return run(("kubectl", "--context", self.context, *argv), stdin=stdin, seconds=seconds, check=check)

    def refused(self, *argv: str, stdin: str | None = None) -> str:
        """Kubectl's output about a request that must not succeed."""
        try:
            told = self(*argv, stdin=stdin)
        except Failed as error:
            return str(error)
        raise Failed(f"kubectl {' '.join(argv)} should have been refused, but: {told}")

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object:
        found: Object = json.loads(self("get", kind, name, *_in(namespace), "-o", "json"))
        return found

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        found: list[Object] = json.loads(
            self("get", kind, *(_in(namespace) or ("-A",)), f"--selector={selector}", "-o", "json")
        )["items"]
        return found

    def workers(self) -> Sequence[str]:
        """The Kubernetes nodes that take pods."""
        return [node["metadata"]["name"] for node in self.list("nodes", selector=f"!{CONTROL_PLANE}")]

    def exists(self, kind: str, name: str, namespace: str | None = None) -> bool:
        return bool(self("get", kind, name, *_in(namespace), "--ignore-not-found", "-o", "name").strip())

    def apply(self, *objects: Object, namespace: str | None = None, owner: str | None = None) -> None:
        """owner: the field manager of a server-side apply; without one it is `kubectl apply` as people type it."""
        way = ("--server-side", f"--field-manager={owner}") if owner else ()
        for one in objects:
            self("apply", *way, *_in(namespace), "-f", "-", stdin=json.dumps(one))

    def patch(self, kind: str, name: str, patch: Object, namespace: str | None = None, subresource: str = "") -> None:
        sub = (f"--subresource={subresource}",) if subresource else ()
        self("patch", kind, name, *_in(namespace), *sub, "--type=merge", "-p", json.dumps(patch))

    def delete(self, kind: str, name: str, namespace: str | None = None, seconds: float = 120) -> None:
        self(
            "delete", kind, name, *_in(namespace), "--ignore-not-found", f"--timeout={seconds:g}s", seconds=seconds + 5
        )

    def namespace(self, name: str) -> None:
        """A namespace that takes only pods of the `restricted` pod security level."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted", PART_OF: SCENARIOS}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})


def _in(namespace: str | None) -> tuple[str, ...]:
    return ("--namespace", namespace) if namespace else ()


def current_context() -> str:
    return run(("kubectl", "config", "current-context")).strip()
