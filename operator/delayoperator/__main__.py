"""The operator's process: python -m delayoperator.

    WATCH_NAMESPACE     namespaces to look after, with commas between; empty or not set: all
    DELAYNODE_IMAGE     the image of nodes whose DelayCluster names none
    DELAYREBALANCE_IMAGE  likewise of the rebalance job
    DELAYCONSOLE_IMAGE  likewise of consoles: one with delayctl and the operator's half, as the operator's own
    DELAYNODE_POD_SECURITY_CONTEXT  a PodSecurityContext as JSON, for pods of DelayClusters that name none
    OPERATOR_LEASE      NAMESPACE/NAME of the Lease of the election, which names the release too; the chart gives each
                        release its own
    OPERATOR_SERVICE_ACCOUNT  its own, in that Lease's namespace: by its tokens nodes know the operator; not set: they
                        don't, and no cluster comes to the security mode Required
    OPERATOR_SECURE_BY_DEFAULT  true: a new DelayCluster without spec.security is Required where keys can be had
    OPERATOR_MAY_KEEP_SECRETS  true: keys of CAs of clusters' own, where cert-manager is not there
    OPERATOR_LEASE_SECONDS  how long a leader may be silent; default 5
    OPERATOR_HTTP       HOST:PORT of /healthz, /readyz and /metrics; default [::]:8080, all addresses
    OPERATOR_METRICS    HOST:PORT of /metrics in place of OPERATOR_HTTP's, by TLS, with
    OPERATOR_METRICS_CERTIFICATES  a directory with tls.crt, tls.key and ca.crt, which client certificates are of
    OPERATOR_METRICS_CLIENTS  names of these, spiffe://... or dns:NAME, with commas; default: all of that CA
    DELAYCLUSTER_LOG_LEVEL  the least level of events in the log: debug, info, warning or error; so does --log-level

Logs are JSON events on stderr, a line each. Without an API server it waits for one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import kopf
from aiohttp import web
from delayapi import address
from delayapi.events import EventLog, add_level_option, take_library_records
from delayapi.log_levels import LogLevel
from delayregistry.kube import Credentials, KubeClient, KubeRegistry, OwnerReference, SharedWatches
from delayregistry.port import Registry
from delayregistry.security import account_audience
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from delayoperator.control_loop.loop import Log
from delayoperator.election.claim import OperatorClaim
from delayoperator.election.claims import ClusterClaims
from delayoperator.election.elector import LeaderElection, boot_ms, process_identity
from delayoperator.election.lease import ElectionTimes
from delayoperator.handlers.routes import listener_of, routes, settings
from delayoperator.handlers.table import Clusters
from delayoperator.kube.api import FIELD_MANAGER, Api, kube_transport
from delayoperator.kube.caches import ObjectCaches
from delayoperator.kube.own_token import ACCOUNT_VARIABLE, OwnAccount, OwnToken
from delayoperator.kube.status import RELEASE
from delayoperator.kube.worker import Worker, WorkerSettings
from delayoperator.metrics import OperatorCollector, registry_of
from delayoperator.metrics_port import MetricsPort, serve_metrics

AGAIN_S = (1.0, 2.0, 5.0, 10.0)  # after watching failed as a whole: no credentials, no API server
DEFAULT_IMAGE = "delaycluster-node:latest"
DEFAULT_REBALANCE_IMAGE = "delaycluster-rebalance:latest"
DEFAULT_CONSOLE_IMAGE = "delaycluster-operator:latest"
DEFAULT_LEASE = "default/delaycluster-operator"


@dataclass(frozen=True, slots=True)
class Options:
    namespaces: tuple[str, ...] = ()  # empty: all
    image: str = DEFAULT_IMAGE
    http: str = "[::]:8080"
    rebalance_image: str = DEFAULT_REBALANCE_IMAGE
    console_image: str = DEFAULT_CONSOLE_IMAGE
    pod_security: dict[str, Any] | None = None
    lease: str = DEFAULT_LEASE
    account: str = ""
    secure_by_default: bool = False
    may_keep_secrets: bool = False
    election: ElectionTimes = field(default_factory=ElectionTimes)
    metrics: str = ""  # empty: at `http`
    metrics_certificates: str = ""
    metrics_clients: tuple[str, ...] = ()  # empty: all whom the CA knows

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Options:
        """Raises ValueError."""
        namespaces = environment.get("WATCH_NAMESPACE", "").split(",")
        metrics = environment.get("OPERATOR_METRICS", "")
        certificates = environment.get("OPERATOR_METRICS_CERTIFICATES", "")
        if metrics and not certificates:
            raise ValueError("OPERATOR_METRICS needs OPERATOR_METRICS_CERTIFICATES")
        return cls(
            tuple(dict.fromkeys(it.strip() for it in namespaces if it.strip())),
            environment.get("DELAYNODE_IMAGE") or DEFAULT_IMAGE,
            environment.get("OPERATOR_HTTP") or "[::]:8080",
            environment.get("DELAYREBALANCE_IMAGE") or DEFAULT_REBALANCE_IMAGE,
            environment.get("DELAYCONSOLE_IMAGE") or DEFAULT_CONSOLE_IMAGE,
            _object(environment, "DELAYNODE_POD_SECURITY_CONTEXT"),
            environment.get("OPERATOR_LEASE") or DEFAULT_LEASE,
            environment.get(ACCOUNT_VARIABLE, ""),
            environment.get("OPERATOR_SECURE_BY_DEFAULT") == "true",
            environment.get("OPERATOR_MAY_KEEP_SECRETS") == "true",
            ElectionTimes(int(environment.get("OPERATOR_LEASE_SECONDS") or ElectionTimes().lease_seconds)),
            metrics,
            certificates,
            tuple(filter(None, environment.get("OPERATOR_METRICS_CLIENTS", "").split(","))),
        )


def _object(environment: Mapping[str, str], name: str) -> dict[str, Any] | None:
    text = environment.get(name, "")
    try:
        found = json.loads(text) if text else None
    except ValueError as error:
        raise ValueError(f"{name} is {text!r}, which is no JSON: {error}") from error
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"{name} is {text!r}; an object is wanted, such as {{}}")
    return found


def log_to_stderr(level: LogLevel) -> Log:
    log = EventLog(level=level)
    take_library_records(log)
    # At INFO kopf tells of each event.
    logging.getLogger("kopf").setLevel(logging.INFO if level is LogLevel.DEBUG else logging.WARNING)
    # It warns of each connection that is not kept, as when 100 clusters ask at once. What fails the client says.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    return log


class Operator:
    """Everything of the process but its signals. run() ends once `stop` is set."""

    def __init__(
        self, options: Options, log: Log, credentials: Credentials, workers: WorkerSettings | None = None
    ) -> None:
        self._options, self._log, self._credentials = options, log, credentials
        self._unfenced = KubeClient(credentials, FIELD_MANAGER, connections=2)
        self.election = LeaderElection(
            self._unfenced,
            options.lease,
            process_identity(),
            lambda: self.clusters.look_again(),
            self._list_again,
            log,
            options.election,
        )
        self._transport = kube_transport(credentials, self._leads)
        self._client = KubeClient(credentials, FIELD_MANAGER, may_write=self._leads)
        self._shared = SharedWatches(self._client, options.namespaces, log)
        self.caches = ObjectCaches(self._client, options.namespaces, self._shared, log)
        self.api = Api(self._transport, self.caches)
        namespace, _, release = options.lease.partition("/")
        account = OwnAccount(namespace, options.account)
        self._settings = workers or WorkerSettings(
            options.image,
            options.rebalance_image,
            options.console_image,
            account,
            options.pod_security,
            secure_by_default=options.secure_by_default,
            may_keep_secrets=options.may_keep_secrets,
            token=partial(self._new_token, account),
        )
        mine = OperatorClaim(release, namespace, RELEASE)
        self._claims = ClusterClaims(self.api, mine, self.election.tenure, boot_ms, self._settings.dead_after_ms)
        self.clusters = Clusters(self._new_worker, log)
        self._watching = False
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._rolled_back = asyncio.Event()
        self.http_address = ""  # while it serves
        self.metrics_port: MetricsPort | None = None

    async def run(self, stop: asyncio.Event) -> None:
        self._loop = asyncio.get_running_loop()
        runner = await self._serve_http()
        self.election.start()
        self.caches.start(listener_of(self.clusters, self._options.namespaces))
        # At once, beside all else that ends: a drain must not wait for this process's end to have another leader.
        released = asyncio.create_task(self._release(stop))
        try:
            await self._watch(stop)
        finally:
            stop.set()
            await released
            await asyncio.to_thread(self.clusters.stop)
            self.caches.close()
            self._shared.close()
            await runner.cleanup()
            if self.metrics_port is not None:
                await self.metrics_port.close()
            for client in (self._transport, self._client, self._unfenced):
                client.close()

    def _new_token(self, account: OwnAccount, namespace: str, cluster: str) -> OwnToken | None:
        """By the client that is not fenced: whoever stands by may ask nodes too."""
        audience = account_audience(namespace, cluster)
        return OwnToken(self._unfenced, account, audience) if account.name else None

    def _leads(self) -> bool:
        return self.election.tenure() is not None

    async def _release(self, stop: asyncio.Event) -> None:
        await stop.wait()
        await asyncio.to_thread(self.election.release)

    def _list_again(self) -> None:
        """From any thread: etcd was restored from an older state. A watch that goes on from a version of before tells
        of nothing until there is that version again; a DelayCluster that is made until then would never be seen."""
        self._shared.list_again()
        self.caches.list_again()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._rolled_back.set)

    async def _watch(self, stop: asyncio.Event) -> None:
        faults = 0
        while not stop.is_set():
            ready, over = asyncio.Event(), asyncio.Event()
            self._rolled_back.clear()
            try:
                waiting = asyncio.create_task(self._note_ready(ready, stop))
                ending = asyncio.create_task(_set_with(over, stop, self._rolled_back))
                await kopf.operator(
                    registry=routes(self.clusters, self._credentials),
                    settings=settings(),
                    # By default kopf asks for the user's name, and OpenShift's users have none.
                    identity=cast(Any, "delaycluster-operator"),
                    standalone=True,
                    clusterwide=not self._options.namespaces,
                    namespaces=self._options.namespaces,
                    ready_flag=ready,
                    stop_flag=over,
                )
                if self._rolled_back.is_set():
                    continue
                stop.set()  # in the main thread kopf takes the signals itself, and returns
            except Exception as error:  # the workers go on meanwhile: they need no watches, only find changes later
                self._log({"event": "watching-failed", "error": f"{type(error).__name__}: {error}"})
            finally:
                waiting.cancel()
                ending.cancel()
                self._watching = False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), AGAIN_S[min(faults, len(AGAIN_S) - 1)])
            faults += 1

    async def _note_ready(self, ready: asyncio.Event, stop: asyncio.Event) -> None:
        await ready.wait()
        stop_on_signals(stop)  # kopf has put its own in their place, which tell us only when all its tasks have ended
        self._watching = True
        self._log({"event": "watching", "namespaces": list(self._options.namespaces) or "all"})

    def _new_worker(self, namespace: str, name: str) -> Worker:
        return Worker(
            namespace, name, self.api, self._open_registry, self._settings, self._log, self._claims, self.caches
        )

    def _open_registry(self, namespace: str, name: str, uid: str, on_change: Callable[[], None]) -> Registry:
        owner = OwnerReference(name, uid)
        return KubeRegistry(
            self._client, namespace, name, owner, log=self._log, on_change=on_change, shared=self._shared
        )

    async def _serve_http(self) -> web.AppRunner:
        metrics = registry_of(OperatorCollector(self.clusters, self.api, self.caches, self._leads))

        told: list[str] = []

        # Everybody may ask: both answer in words that are always the same. What is behind them is in the log.
        async def healthz(_: web.Request) -> web.Response:
            nonlocal told
            stuck = self.clusters.stuck()
            if stuck != told:
                told = stuck
                self._log({"event": "clusters-stuck" if stuck else "clusters-stuck-over", "clusters": stuck})
            return web.Response(status=503 if stuck else 200, text="clusters-stuck\n" if stuck else "ok\n")

        async def readyz(_: web.Request) -> web.Response:
            if not self._watching:
                return web.Response(status=503, text="not-watching\n")
            if self.election.fault is not None and not self._leads():
                return web.Response(status=503, text="lead-unknown\n")
            return web.Response(text="ok: leads\n" if self._leads() else "ok: stands by\n")

        async def all_metrics(_: web.Request) -> web.Response:
            body = await asyncio.to_thread(generate_latest, metrics)
            return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

        app = web.Application()
        routes = [web.get("/healthz", healthz), web.get("/readyz", readyz)]
        if self._options.metrics:
            self.metrics_port = await serve_metrics(
                all_metrics,
                self._options.metrics,
                self._options.metrics_certificates,
                self._log,
                self._options.metrics_clients,
            )
        else:
            routes.append(web.get("/metrics", all_metrics))
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.SockSite(runner, address.listen(*address.split(self._options.http))).start()
        self.http_address = address.join(*runner.addresses[0][:2])
        return runner


async def _set_with(event: asyncio.Event, *others: asyncio.Event) -> None:
    """Once one of the others is set."""
    waiting = [asyncio.create_task(other.wait()) for other in others]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    event.set()


async def serve(options: Options, log: Log) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop)
    credentials = await _credentials(stop, log)
    if credentials is not None:
        await Operator(options, log, credentials).run(stop)
    log({"event": "stopped"})


def stop_on_signals(stop: asyncio.Event) -> None:
    if threading.current_thread() is threading.main_thread():  # no other thread may
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def _credentials(
    stop: asyncio.Event, log: Log, find: Callable[[], Credentials] = Credentials.from_environment
) -> Credentials | None:
    while not stop.is_set():
        try:
            return find()
        except OSError as error:
            log({"event": "no-credentials", "error": str(error)})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), AGAIN_S[-1])
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="delayoperator", description="Looks after DelayClusters; docs/operations.md.")
    add_level_option(parser)
    log = log_to_stderr(parser.parse_args().log_level)
    try:
        options = Options.from_environment(os.environ)
    except ValueError as error:
        parser.error(str(error))
    asyncio.run(serve(options, log))


if __name__ == "__main__":
    main()
