"""A console as in a cluster, on a local one with TLS, and a stand-in for the API server that gives tokens"""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import trustme

COMMAND = Path(sys.executable).with_name("delayconsole")
KUBE_TOKEN = "a-token-of-kubernetes"
ACCOUNT = "system:serviceaccount:shop:ops"


class TokenServer:
    """Knows KUBE_TOKEN as ACCOUNT, and gives it `node_token` for the nodes. asked: (method, path, token shown).

    logs: by component, pod and what it has written; None: nobody may list pods.
    """

    def __init__(self, node_token: str, directory: Path) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.sinks: list[dict[str, Any]] = []
        self.logs: dict[str, dict[str, str]] | None = None
        ca = trustme.CA()
        ca.cert_pem.write_to_path(directory / "kubernetes.crt")
        self.ca = directory / "kubernetes.crt"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("127.0.0.1").configure_cert(context)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                shown = (self.headers["Authorization"] or "").removeprefix("Bearer ")
                path, _, query = self.path.partition("?")
                outer.asked.append((self.command, path, shown))
                known = shown == KUBE_TOKEN
                status, found = outer.found(path, query, node_token) if known else (401, {"message": "who?"})
                data = (found if isinstance(found, str) else json.dumps(found)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = answer

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def found(self, path: str, query: str, node_token: str) -> tuple[int, Any]:
        if path.endswith("/selfsubjectreviews"):
            return 201, {"status": {"userInfo": {"username": ACCOUNT}}}
        if path == "/api/v1/namespaces/shop/serviceaccounts/ops/token":
            return 201, {"status": {"token": node_token}}
        if path.endswith("/delaysinks"):
            return 200, {"items": self.sinks}
        asked = dict(parse_qsl(query))
        kind = asked.get("labelSelector", "").rpartition("app.kubernetes.io/component=")[2] or asked.get("container")
        logs = None if self.logs is None or kind is None else self.logs.get(kind, {})
        if path == "/api/v1/namespaces/shop/pods" and logs is not None:
            return 200, {"items": [{"metadata": {"name": name}} for name in logs]}
        if path.endswith("/log") and logs is not None:
            return 200, logs[path.split("/")[-2]]
        return 403, {"message": "not yours"}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def visible(self) -> str:
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", self.text)).replace("&#39;", "'")

    @property
    def cookie(self) -> str:
        """What a browser sends back of it."""
        return self.headers.get("Set-Cookie", "").partition(";")[0]

    @property
    def csrf(self) -> str:
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', self.text)
        assert found is not None, self.visible
        return found[1]


class ClusterConsole:
    """Asked as a browser asks that came by a port-forward, unless the test says otherwise."""

    def __init__(self, port: int, ca: Path, log: list[str]) -> None:
        """log: what it has written, line by line."""
        self.port, self.origin, self.log = port, f"https://localhost:{port}", log
        self._context = ssl.create_default_context(cafile=str(ca))

    def ask(
        self, path: str, fields: Mapping[str, str] | None = None, cookie: str = "", **headers: str | None
    ) -> Answer:
        """fields: of a form that is posted. A header that is None is left out."""
        whole: dict[str, str | None] = {"Host": f"localhost:{self.port}", "Cookie": cookie or None}
        if fields is not None:
            whole |= {"Origin": self.origin, "Content-Type": "application/x-www-form-urlencoded"}
        whole |= headers
        connection = HTTPSConnection("localhost", self.port, timeout=60, context=self._context)
        sent = {name: text for name, text in whole.items() if text is not None}
        body = None if fields is None else urlencode(fields)
        connection.request("GET" if fields is None else "POST", path, body, sent)
        answer = connection.getresponse()
        found = Answer(answer.status, dict(answer.getheaders()), answer.read().decode())
        connection.close()
        return found


@contextmanager
def cluster_console(
    security: Path, endpoint: str, kubernetes: TokenServer, directory: Path, *options: str
) -> Iterator[ClusterConsole]:
    """security: a local cluster's directory of that name, whose CA the browser trusts too."""
    arguments = {
        "--cluster": "shop/orders",
        "--listen": "127.0.0.1:0",
        "--certificates": str(security / "server"),
        "--host": "localhost",
        "--endpoint": endpoint,
        "--ca": str(security / "ca.crt"),
        "--server-name": "localhost",
        "--kubernetes-ca": str(kubernetes.ca),
    }
    environment = {
        **os.environ,
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(kubernetes.port),
    }
    command = [COMMAND, *(part for pair in arguments.items() for part in pair), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if '"console-listening"' in line:
                break
        watchdog.cancel()
        assert "console-listening" in "".join(lines), f"it has not started: {''.join(lines)}"
        port = int(json.loads(lines[-1])["port"])
        threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True).start()
        yield ClusterConsole(port, security / "ca.crt", lines)
    finally:
        watchdog.cancel()
        process.terminate()
        process.wait(30)
