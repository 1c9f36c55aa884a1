"""What is asked of Kubernetes' API server about tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from delaynode.auth.api_server import KubeApiServer
from delaynode.auth.key_sources import fetch_keys
from delayregistry.kube.client import Credentials
from kubernetes.client import Configuration

from tests.auth.issuing import ACCOUNT, AUDIENCE, ISSUER, accounts, key_set


class AnsweringServer:
    """Answers as the test says: (status, JSON) by path. asked: (method, path, body, what it takes)."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[tuple[str, str, Any, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                outer.asked.append((self.command, self.path, body, self.headers["Accept"]))
                status, found = outer.answers.get(self.path, (404, {}))
                self.send_response(status)
                data = json.dumps(found).encode() if not isinstance(found, bytes) else found
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringServer]:
    server = AnsweringServer()
    host = f"http://127.0.0.1:{server.server.server_port}"
    monkeypatch.setattr(Credentials, "from_environment", lambda: Credentials(Configuration(host=host)))
    yield server
    server.close()


@pytest.fixture
def api(server: AnsweringServer) -> Iterator[KubeApiServer]:
    api = KubeApiServer("test")
    yield api
    api.close()


def test_its_keys_and_its_name_are_read(server: AnsweringServer, api: KubeApiServer) -> None:
    server.answers["/.well-known/openid-configuration"] = 200, {"issuer": ISSUER}
    server.answers["/openid/v1/jwks"] = 200, json.loads(key_set())
    found = fetch_keys(replace(accounts(""), issuer=""), api)
    assert (found.issuer, set(found.keys)) == (ISSUER, {"k1"})
    assert all("application/jwk-set+json" in accept for *_, accept in server.asked), "else it answers 406"


@pytest.mark.parametrize("answer", [(403, {}), (500, b"broken"), (200, b"[]"), (200, b"no JSON"), (404, {})])
def test_what_is_no_answer_is_said(server: AnsweringServer, api: KubeApiServer, answer: tuple[int, Any]) -> None:
    server.answers["/openid/v1/jwks"] = answer
    with pytest.raises(OSError, match="GET /openid/v1/jwks"):
        api.get("/openid/v1/jwks")


def test_a_token_is_reviewed_for_its_audience(server: AnsweringServer, api: KubeApiServer) -> None:
    status = {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": ACCOUNT}}
    server.answers["/apis/authentication.k8s.io/v1/tokenreviews"] = 201, {"status": status}
    assert api.review("a.b.c", AUDIENCE) == status
    assert server.asked[0][2]["spec"] == {"token": "a.b.c", "audiences": [AUDIENCE]}


def test_a_review_that_is_forbidden_says_which_role_it_needs(server: AnsweringServer, api: KubeApiServer) -> None:
    server.answers["/apis/authentication.k8s.io/v1/tokenreviews"] = 403, {"kind": "Status", "reason": "Forbidden"}
    with pytest.raises(OSError, match="system:auth-delegator"):
        api.review("a.b.c", AUDIENCE)


def test_an_api_server_that_is_away_is_said(server: AnsweringServer, api: KubeApiServer) -> None:
    server.close()
    for ask in (lambda: api.get("/openid/v1/jwks"), lambda: api.review("a.b.c", AUDIENCE)):
        with pytest.raises(OSError, match=r"refused|Connection"):
            ask()
