"""Why an endpoint cannot be connected to, where TLS is the reason.

gRPC says "failed to connect" of a wrong CA, an expired certificate and a plain port alike. So once a connection has
failed, one is made here by hand: a handshake, then HTTP/2's first words, until somebody hangs up and it is clear who.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterable
from typing import Final

from delayapi import address
from delayapi.credentials import BadCredentials, Tls

from delayclient.errors import TlsFailed

_TIMEOUT_S: Final = 1.0
_AGAIN_S: Final = 2.0
"""Between two looks at the same endpoint."""
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_FRAME_HEAD_BYTES: Final = 9
_SETTINGS: Final = 4
_EXPIRED: Final = 10  # these are OpenSSL's X509_V_ERR_...
_NOT_YET_VALID: Final = 9
_WRONG_NAME: Final = (62, 64)
_UNTRUSTED: Final = (2, 7, 18, 19, 20, 21)  # 7: of another CA of the same name


class Diagnoses:
    """What is wrong with the endpoints of one cluster. Belongs to an event loop."""

    def __init__(self, tls: Tls | None) -> None:
        self._tls = tls
        self._known: dict[str, tuple[float, TlsFailed | None]] = {}

    async def of(self, endpoint: str, dialled: str, name: str) -> TlsFailed | None:
        """dialled: where to connect to for it. name: what its certificate must be for. None: TLS is not the reason."""
        looked_s, found = self._known.get(endpoint, (-_AGAIN_S, None))
        if time.monotonic() - looked_s >= _AGAIN_S:
            found = await asyncio.to_thread(diagnose, endpoint, dialled, name, self._tls)
            self._known[endpoint] = (time.monotonic(), found)
        return found


def diagnose(endpoint: str, dialled: str, name: str, tls: Tls | None) -> TlsFailed | None:
    """Blocks for some seconds at most. None: it can be connected to, or TLS is not why it cannot."""
    try:
        host, port = address.split(dialled)
        if tls is None:
            return _of_plain(endpoint, host, port)
        return _of_tls(endpoint, host, port, name, tls)
    except (OSError, ValueError):  # refused, no route, no such host: gRPC says so too
        return None


def _of_plain(endpoint: str, host: str, port: int) -> TlsFailed | None:
    if _speaks_plain(host, port):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with _connected(host, port) as plain, context.wrap_socket(plain):
            pass
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):  # an alert is TLS too
            return None
    return TlsFailed(f"{endpoint} speaks TLS, and this client does not: give tls", "SERVER_WANTS_TLS")


def _of_tls(endpoint: str, host: str, port: int, name: str, tls: Tls) -> TlsFailed | None:
    try:
        context = tls.context()
    except BadCredentials as error:
        return TlsFailed(str(error), "BAD_CREDENTIALS")
    try:
        with _connected(host, port) as plain, context.wrap_socket(plain, server_hostname=name) as stream:
            return _of_certificate(endpoint, stream, tls)
    except ssl.SSLCertVerificationError as error:
        return _of_server(endpoint, host, port, name, error, context)
    except ssl.SSLError as error:
        if _speaks_plain(host, port):
            return TlsFailed(f"{endpoint} does not speak TLS: it is a plain port", "SERVER_IS_PLAIN")
        return TlsFailed(f"the TLS handshake with {endpoint} failed: {_words(error)}", "TLS_FAILED")


def _of_server(
    endpoint: str, host: str, port: int, name: str, error: ssl.SSLCertVerificationError, context: ssl.SSLContext
) -> TlsFailed:
    if error.verify_code in _WRONG_NAME:
        names = _names(host, port, context)
        return TlsFailed(
            f"the certificate of {endpoint} is not for {name!r} but for {', '.join(names) or 'nobody'}: connect by "
            "such a name, or give it as server_name",
            "WRONG_SERVER_NAME",
        )
    if error.verify_code == _EXPIRED:
        return TlsFailed(f"the certificate of {endpoint}, or its CA's, has expired", "SERVER_CERTIFICATE_EXPIRED")
    if error.verify_code == _NOT_YET_VALID:
        return TlsFailed(
            f"the certificate of {endpoint}, or its CA's, is not valid yet: one of the clocks is wrong",
            "SERVER_CERTIFICATE_NOT_YET_VALID",
        )
    if error.verify_code in _UNTRUSTED:
        return TlsFailed(
            f"the certificate of {endpoint} is of a CA that this client does not trust: give the cluster's own as ca",
            "UNTRUSTED_SERVER",
        )
    return TlsFailed(f"the certificate of {endpoint} is refused: {error.verify_message}", "TLS_FAILED")


def _of_certificate(endpoint: str, stream: ssl.SSLSocket, tls: Tls) -> TlsFailed | None:
    """With TLS 1.3 the client is done before the server has looked at the client's certificate."""
    refused = TlsFailed(
        f"{endpoint} refuses this client's certificate: it has expired, or is of another CA than the listener trusts",
        "CERTIFICATE_REFUSED",
    )
    wanted = TlsFailed(
        f"{endpoint} asks for a client's certificate: give certificate and key, or use a listener for tokens",
        "CERTIFICATE_WANTED",
    )
    try:
        stream.sendall(_PREFACE)
        answered = bool(stream.recv(_FRAME_HEAD_BYTES))
    except TimeoutError:
        return None
    except (ssl.SSLError, ConnectionError):
        answered = False
    if answered:
        return None
    return refused if tls.certificate else wanted


def _speaks_plain(host: str, port: int) -> bool:
    """It answers HTTP/2 without TLS."""
    try:
        with _connected(host, port) as plain:
            plain.sendall(_PREFACE)
            head = plain.recv(_FRAME_HEAD_BYTES)
    except (TimeoutError, ConnectionError):
        return False
    return len(head) == _FRAME_HEAD_BYTES and head[3] == _SETTINGS


def _names(host: str, port: int, context: ssl.SSLContext) -> list[str]:
    """For whom a trusted certificate is."""
    context.check_hostname = False
    with _connected(host, port) as plain, context.wrap_socket(plain) as stream:
        certificate = stream.getpeercert() or {}
    names: Iterable[tuple[str, str]] = certificate.get("subjectAltName", ())  # type: ignore[assignment]
    return [name for kind, name in names if kind in ("DNS", "IP Address")]


def _connected(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), _TIMEOUT_S)


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
