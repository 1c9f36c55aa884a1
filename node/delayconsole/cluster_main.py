"""`delayconsole`: the console in a cluster, as the operator runs it (spec.console of a DelayCluster).

It has no rights. Who comes signs in, and everything is asked and done with what they have shown.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
from delayapi import address
from delayapi.certificates import Certificates, CertificateStore
from delayapi.events import EventLog, take_library_records
from delayapi.http_port import HttpPort
from delayapi.secured_http import server_context

from delayconsole.app import ConsoleApp
from delayconsole.cluster_sign_in import ClusterSignIn
from delayconsole.identities import ConsolePlace, VisitorIdentities
from delayconsole.oidc import OidcClient, OidcFlow
from delayconsole.pages import PAGES
from delayconsole.render import missing_assets
from delayconsole.security import OwnHosts
from delayconsole.sessions import Sessions

OIDC_CA = "DELAYCONSOLE_OIDC_CA"
"""Environment: PEM of whom to trust about the provider."""
CERTIFICATE_S = 600.0
"""So long it waits for its first certificate, which cert-manager may be making still; then it ends, and says so."""
MAX_CONNECTIONS = 1_000  # more come only from who keeps others out: the one goes that has been idle the longest


@dataclass(frozen=True, slots=True)
class ClusterConsole:
    """What a console in a cluster is told. hosts: the names by which browsers come, with any port."""

    place: ConsolePlace
    listen: str
    certificates: str
    hosts: Sequence[str]
    allow_changes: bool
    oidc: OidcClient | None = None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--cluster", required=True, metavar="NS/NAME", help="The DelayCluster.")
@click.option("--listen", default="[::]:7190", show_default=True, metavar="H:P", help="By TLS alone.")
@click.option("--certificates", required=True, metavar="DIR", help="tls.crt and tls.key, taken up when replaced.")
@click.option("--host", "hosts", multiple=True, required=True, metavar="NAME", help="By which browsers come.")
@click.option("--endpoint", required=True, metavar="H:P", help="The nodes' listener for tokens.")
@click.option("--ca", default="", metavar="FILE", help="Whom to trust with the nodes' certificates.")
@click.option("--server-name", default="", metavar="NAME", help="What the nodes' certificates must be for.")
@click.option(
    "--kubernetes-ca", default="", metavar="FILE", help="Of the API server; also its URL's by the environment."
)
@click.option("--oidc-issuer", default="", metavar="URL", help="A provider at which users sign in.")
@click.option("--oidc-client-id", default="", metavar="ID", help="The console's there.")
@click.option("--oidc-client-secret", default="", metavar="FILE", help="Its secret, unless it is a public client.")
@click.option("--oidc-scope", "oidc_scopes", multiple=True, metavar="SCOPE", help="One more than openid.")
@click.option("--allow-changes", is_flag=True, help="Let users change what they may. Without it, they only look.")
def main(
    cluster: str, listen: str, certificates: str, hosts: tuple[str, ...], endpoint: str, ca: str, server_name: str,
    kubernetes_ca: str, oidc_issuer: str, oidc_client_id: str, oidc_client_secret: str, oidc_scopes: tuple[str, ...],
    allow_changes: bool,
) -> None:  # fmt: skip
    """Serve the console of a DelayCluster to those who sign in."""
    namespace, _, name = cluster.partition("/")
    if not namespace or not name:
        raise click.UsageError(f"--cluster is {cluster!r}; expected NAMESPACE/NAME")
    if bool(oidc_issuer) != bool(oidc_client_id):
        raise click.UsageError("--oidc-issuer and --oidc-client-id go together")
    if missing := missing_assets():
        raise click.UsageError(f"{', '.join(missing)} of the console are not installed")
    place = ConsolePlace(namespace, name, endpoint, ca, server_name, _api_server(os.environ), kubernetes_ca)
    oidc = None
    if oidc_issuer:
        oidc = OidcClient(oidc_issuer, oidc_client_id, oidc_client_secret, oidc_scopes, os.environ.get(OIDC_CA, ""))
    console = ClusterConsole(place, listen, certificates, hosts, allow_changes, oidc)
    log = EventLog()
    take_library_records(log)
    logging.getLogger("delayconsole").setLevel(logging.INFO)
    sys.exit(asyncio.run(_until_stopped(console, log)))


def _api_server(environment: Mapping[str, str]) -> str:
    """As the kubelet tells every container; "": there is none."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://{address.join(host, int(port))}" if host else ""


async def _until_stopped(console: ClusterConsole, log: EventLog) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return await serve(console, log, stopped)


async def serve(console: ClusterConsole, log: EventLog, stopped: asyncio.Event) -> int:
    """Until `stopped`. Returns the exit status."""
    store = await asyncio.to_thread(CertificateStore, console.certificates)
    store.start()
    sessions = Sessions()
    try:
        context = await _context(store, log, stopped)
        if context is None:
            return 0 if stopped.is_set() else 1
        oidc = None if console.oidc is None else OidcFlow(console.oidc)
        sign_in = ClusterSignIn(
            VisitorIdentities(console.place), sessions, kubernetes=bool(console.place.kubernetes), oidc=oidc
        )
        app = ConsoleApp(
            sign_in,
            OwnHosts(frozenset(it.lower() for it in console.hosts)),
            PAGES,
            allow_changes=console.allow_changes,
            cluster=f"{console.place.namespace}/{console.place.cluster}",
            audit=log,
        )
        port = HttpPort(
            app.application(), console.listen, MAX_CONNECTIONS, lambda event, **said: log({"event": event, **said}),
            context=lambda: context, cancels=False,  # an action goes on when its browser has gone
        )  # fmt: skip
        await port.start()
        log({"event": "console-listening", "cluster": console.place.cluster, "port": port.address[1]})
        await stopped.wait()
        await port.close()
        return 0
    finally:
        await sessions.close()
        await asyncio.to_thread(store.close)


async def _context(store: CertificateStore, log: EventLog, stopped: asyncio.Event) -> ssl.SSLContext | None:
    """One whose handshakes take the newest certificate. None: there was none in time, or it was stopped."""
    until_s = asyncio.get_running_loop().time() + CERTIFICATE_S
    told: str | None = None
    while store.current is None:
        if store.problem != told:
            told = store.problem
            log({"event": "certificate-unusable", "use": "console", "reason": told})
        if stopped.is_set() or asyncio.get_running_loop().time() > until_s:
            return None
        await asyncio.sleep(0.5)
    held: Certificates = store.current
    newest = server_context(held, None)

    def chosen(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        nonlocal held, newest
        found = store.current
        if found is not None and found is not held:
            held, newest = found, server_context(found, None)
        connection.context = newest

    first = server_context(held, None)
    first.sni_callback = chosen
    return first
