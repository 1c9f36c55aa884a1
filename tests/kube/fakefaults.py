"""Faults between a client and the fake API server, on demand."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True)
class Fault:
    """A fault of requests whose method and path match, `times` times (None: until it is taken back).

    method: GET, LIST, WATCH, POST, PUT, PATCH, DELETE; "" for any. path: a regular expression that is searched for.
    manager: the field manager of the request; "" for any. delay_s: the server waits so long before it does anything.
    code: the server answers with it and does nothing. message: the answer's words; "" for a default. cause: one that
    its details have.
    drop: the connection is cut, "before" or "after" the request was done.
    hold: the request is done, the answer never comes (until close() of the server or of the client).
    """

    method: str = ""
    path: str = ""
    manager: str = ""
    times: int | None = 1
    delay_s: float = 0.0
    code: int = 0
    message: str = ""
    cause: str = ""
    retry_after_s: int | None = None
    drop: str = ""
    hold: bool = False
    met: int = 0  # number of requests that met it

    def meets(self, method: str, path: str, manager: str) -> bool:
        return (
            self.method in ("", method)
            and self.manager in ("", manager)
            and re.search(self.path, path) is not None
            and (self.times is None or self.met < self.times)
        )


class Faults:
    """The faults in force; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def take_back(self, fault: Fault) -> None:
        with self._lock:
            if fault in self._faults:
                self._faults.remove(fault)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def for_request(self, method: str, path: str, manager: str) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.meets(method, path, manager):
                    fault.met += 1
                    return fault
        return None
