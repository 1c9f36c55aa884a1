"""Stands in for a cluster's parts besides its API server: the StatefulSet controller, kubelets, and node processes that
renew leases, serve shards, keep copies on their claims and answer ReplicaStatus over real gRPC.

    kubelet = Kubelet(server.store); kubelet.start(); ...; kubelet.close()

Every `TICK_S` it looks at the fake API server's store (not over HTTP) and does what its parts would do. Simplified: a
copy is complete as soon as its master serves; a stopping node ends when it leads nothing any more, or after STOP_S.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from concurrent import futures
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import grpc
import numpy as np
from delayapi.proto.delay.v1 import delay_pb2, schedules_pb2
from delayoperator.resources.names import SECURITY_MODE
from delayregistry.kube import objects
from delayregistry.kube.names import Names
from delayregistry.model import (
    FIRST_VERSION,
    Handover,
    ListenerEndpoint,
    ListenerTrust,
    NodeLease,
    ShardObject,
    ShardStatus,
    VersionRange,
)

from tests.kube import fakekinds
from tests.kube.fakestore import Refused, Store

TICK_S = 0.05
STOP_S = 3.0
PATIENCE_S = 1.0  # how long a master waits for a silent slave before it goes on without it
PENDING = 7  # messages in each copy that are not due yet
FINALIZER = "test/kubelet"
Json = dict[str, Any]


@dataclass
class Process:
    """One node process in a pod."""

    cluster: str
    node: str
    pod_uid: str
    disk: Json  # copies by the shard's uid: the highest epoch that the copy knows
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))
    renewals: int = 0
    frozen: bool = False
    stopping_since_s: float | None = None
    server: Any = None
    endpoint: str = ""
    versions: VersionRange | None = None  # of files and of the wire, as its image has them
    secured: bool = False  # it has certificates

    def entry(self, uid: int) -> str:
        return f"copy-{self.node}-{uid}"


class Kubelet:
    """bad_images: pods that have one of these never start. unready_images: they run, serve and are never ready, as with
    a sidecar whose probe fails. dead: pods by name whose process does not run. machines: by pod, where it is not on one
    of its own.

    versions: of the files and the wire that an image's release knows; a release that says nothing is not in it.
    """

    def __init__(self, store: Store, tick_s: float = TICK_S) -> None:
        self.store, self.tick_s = store, tick_s
        self.machines: dict[str, str] = {}
        self.bad_images: set[str] = set()
        self.unready_images: set[str] = set()
        self.versions: dict[str, VersionRange] = {}
        self.frozen: set[str] = set()  # pods by name
        self.expandable = True
        self.certificates_lack = False  # Secrets of pods that begin from now on
        self.certificate_problem = ""  # as every node's lease has it
        self.lock = threading.RLock()
        self.processes: dict[str, Process] = {}  # by pod uid
        self.ends: dict[str, list[str]] = {}  # incarnations that ended in a pod, by its uid
        self.disks: dict[tuple[str, str], Json] = {}  # by namespace/cluster and node
        self.names: dict[str, tuple[str, int, str]] = {}  # topic, queue and the cluster that had it last, by uid
        self.kept: dict[str, tuple[str, ...]] = {}  # the in-sync set that the copies keep, by uid
        self.pending, self.released = PENDING, 0  # messages in each copy
        self.schedules: dict[tuple[str, str], schedules_pb2.ScheduleState] = {}  # by topic and id
        self.schedule_lists = 0
        self.refused_schedules = ""  # why none is taken
        self.oldest_ms = 0  # of each shard, as GetWheel says it
        self.groups: list[Any] = []  # of each shard, as DescribeGroup says them
        self.log_end = 100
        self.damaged: dict[tuple[str, str], str] = {}  # why a copy is of no use, by uid and node
        self.restarts: list[str] = []  # pods that were told to stop, in order
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for process in self.processes.values():
            process.server.stop(0)

    def kill(self, pod: str) -> None:
        """The container of this pod ends, as by kill -9; the kubelet starts another one in its place."""
        with self.lock:
            found = next(it for it in self._pods() if it["metadata"]["name"] == pod)
            self._end(found["metadata"]["uid"])

    # ------------------------------------------------------------ the loop
    def _run(self) -> None:
        pause_s = self.tick_s
        while not self._stop.wait(pause_s):
            began_s = time.monotonic()
            try:
                with self.lock:
                    self._tick()
            except Refused as error:
                if error.code not in (404, 409):
                    self.errors.append(str(error))
            except Exception as error:  # kept for the test to show
                self.errors.append(repr(error))
            pause_s = max(self.tick_s - (time.monotonic() - began_s), 0.01)

    def _tick(self) -> None:
        pods = self._pods()
        for each in self._all("statefulsets"):
            self._tend_set(each, pods)
        pods = self._pods()
        present = {pod["metadata"]["uid"] for pod in pods}
        for uid in [uid for uid in self.processes if uid not in present]:
            self._end(uid)
        for pod in pods:
            self._tend_pod(pod)
        for claim in self._all("persistentvolumeclaims"):
            self._tend_claim(claim)
        shards = self._shards()
        for process in list(self.processes.values()):
            if not process.frozen:
                self._renew(process)
                self._serve(process, shards)

    # ------------------------------------------------------------ StatefulSets
    def _tend_set(self, found: Json, all_pods: list[Json]) -> None:
        meta, spec = found["metadata"], found["spec"]
        name, namespace = meta["name"], meta["namespace"]
        revision = f"{name}-{hashlib.sha256(json.dumps(spec['template'], sort_keys=True).encode()).hexdigest()[:10]}"
        pods = {pod["metadata"]["name"]: pod for pod in all_pods if pod["metadata"]["namespace"] == namespace}
        for number in range(spec["replicas"]):
            if f"{name}-{number}" not in pods:
                self._make_pod(found, number, revision)
        for pod in pods.values():
            owner, number = pod["metadata"]["name"].rsplit("-", 1)
            if owner == name and int(number) >= spec["replicas"] and "deletionTimestamp" not in pod["metadata"]:
                self.store.delete(fakekinds.find("pods"), namespace, pod["metadata"]["name"])
                if spec["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Delete":
                    self.store.delete(fakekinds.find("persistentvolumeclaims"), namespace, f"data-{name}-{number}")
        own = [pod for key, pod in pods.items() if key.rsplit("-", 1)[0] == name]
        status = {"observedGeneration": meta["generation"], "updateRevision": revision, "replicas": len(own)}
        if {key: found.get("status", {}).get(key) for key in status} != status:
            self.store.patch(fakekinds.find("statefulsets"), namespace, name, {"status": status}, "sts", "status")

    def _make_pod(self, found: Json, number: int, revision: str) -> None:
        meta, spec = found["metadata"], found["spec"]
        name, namespace, template = f"{meta['name']}-{number}", meta["namespace"], spec["template"]
        labels = {**template["metadata"]["labels"], "controller-revision-hash": revision}
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": meta["name"], "uid": meta["uid"]}
        claims = fakekinds.find("persistentvolumeclaims")
        claim = spec["volumeClaimTemplates"][0]
        try:
            self.store.get(claims, namespace, f"data-{name}")
        except Refused:
            body = {"metadata": {"name": f"data-{name}", "labels": claim["metadata"]["labels"]}, "spec": claim["spec"]}
            body["spec"] = {"storageClassName": "standard", **claim["spec"]}
            self.store.create(claims, namespace, body)
        pod = {
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": dict(template["metadata"].get("annotations", {})),
                "ownerReferences": [owner],
                "finalizers": [FINALIZER],
            },
            "spec": {**template["spec"], "nodeName": self.machines.get(name, f"machine-{number}")},
        }
        self.store.create(fakekinds.find("pods"), namespace, pod)

    def _tend_claim(self, claim: Json) -> None:
        asked = claim["spec"]["resources"]["requests"]["storage"]
        status = {"phase": "Bound", "capacity": {"storage": asked}}
        if claim.get("status") != status:
            meta = claim["metadata"]
            kind = fakekinds.find("persistentvolumeclaims")
            self.store.patch(kind, meta["namespace"], meta["name"], {"status": status}, "pv", "status")

    # ------------------------------------------------------------ pods
    def _tend_pod(self, pod: Json) -> None:
        meta, uid = pod["metadata"], pod["metadata"]["uid"]
        process = self.processes.get(uid)
        if "deletionTimestamp" in meta:
            if process is not None and process.stopping_since_s is None:
                process.stopping_since_s = time.monotonic()
                self.restarts.append(meta["name"])
            over = process is None or process.frozen or self._may_stop(process)
            if over:
                self._end(uid)
                self.store.patch(
                    fakekinds.find("pods"),
                    meta["namespace"],
                    meta["name"],
                    {"metadata": {"finalizers": None}},
                    "kubelet",
                )
            return
        image = pod["spec"]["containers"][0]["image"]
        if image in self.bad_images:
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
            return self._pod_status(pod, {"waiting": waiting}, ready=False)
        if process is None and (refusal := self._refusal(pod)):
            return self._pod_status(pod, {"waiting": {"reason": "CrashLoopBackOff"}}, ready=False, refusal=refusal)
        if process is None:
            process = self._begin(pod)
        process.frozen = meta["name"] in self.frozen
        ready = not process.frozen and image not in self.unready_images
        self._pod_status(pod, {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, ready=ready)

    def _refusal(self, pod: Json) -> str:
        """The last word of a node that is too old for its cluster's files; "": it starts."""
        meta = pod["metadata"]
        cluster = str(meta["name"]).rsplit("-", 1)[0]
        settings = self.store.get(fakekinds.find("configmaps"), meta["namespace"], f"{cluster}-cluster")
        told = json.loads(settings["data"]["cluster.json"])["nodesVersion"]
        read = self.versions.get(pod["spec"]["containers"][0]["image"], FIRST_VERSION).greatest
        return f"nodes write format {told}, this release reads up to {read}: the upgrade is final" * (told > read)

    def _pod_status(self, pod: Json, state: Json, *, ready: bool, refusal: str = "") -> None:
        meta = pod["metadata"]
        container: Json = {
            "name": "node", "state": state, "ready": ready, "restartCount": len(self.ends.get(meta["uid"], []))
        }  # fmt: skip
        if ends := self.ends.get(meta["uid"]):
            last = {"exitCode": 137, "finishedAt": "2026-01-01T00:00:00Z", "message": f"incarnation {ends[-1]}\n"}
            container["lastState"] = {"terminated": last}
        if refusal:
            container["lastState"] = {"terminated": {"exitCode": 1, "message": f"{refusal}\n"}}
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        (before,) = (pod.get("status") or {}).get("conditions") or [{}]
        same = before.get("status") == condition["status"]
        condition["lastTransitionTime"] = before["lastTransitionTime"] if same else f"{datetime.now(UTC):%FT%TZ}"
        status = {
            "phase": "Running" if "running" in state else "Pending",
            "conditions": [condition],
            "containerStatuses": [container],
        }
        if "running" in state:
            status["podIP"] = _address(meta["name"].rsplit("-", 1)[1])
        if pod.get("status") != status:
            kind = fakekinds.find("pods")
            self.store.patch(kind, meta["namespace"], meta["name"], {"status": status}, "kubelet", "status")

    def _begin(self, pod: Json) -> Process:
        meta = pod["metadata"]
        cluster, number = meta["name"].rsplit("-", 1)
        place = f"{meta['namespace']}/{cluster}"
        process = Process(place, f"n{number}", meta["uid"], self.disks.setdefault((place, f"n{number}"), {}))
        process.secured = SECURITY_MODE in meta.get("annotations", {}) and not self.certificates_lack
        process.versions = self.versions.get(pod["spec"]["containers"][0]["image"])
        process.server = grpc.server(futures.ThreadPoolExecutor(2))
        process.server.add_generic_rpc_handlers((_Answers(self, process),))
        process.endpoint = f"{_address(number)}:{process.server.add_insecure_port('0.0.0.0:0')}"
        process.server.start()
        self.processes[meta["uid"]] = process
        return process

    def _end(self, uid: str) -> None:
        process = self.processes.pop(uid, None)
        if process is not None:
            process.server.stop(0)
            self.ends.setdefault(uid, []).append(process.incarnation)

    def _may_stop(self, process: Process) -> bool:
        leads = any(shard.spec.master == process.node for shard in self._of(process, self._shards()).values())
        since_s = process.stopping_since_s or 0.0
        return time.monotonic() - since_s > (STOP_S if leads else 2 * TICK_S)

    # ------------------------------------------------------------ node processes
    def _renew(self, process: Process) -> None:
        namespace, cluster = process.cluster.split("/")
        process.renewals += 1
        stopping = process.stopping_since_s is not None
        trust = ListenerTrust("shop-client.shop.svc", "PEM") if process.secured else None
        lease = NodeLease(
            process.node, process.incarnation, process.endpoint, "127.0.0.1:1", process.renewals, stopping=stopping,
            formats=process.versions, wire=process.versions, trust=trust, peer_tls=process.secured,
            certificate_problem=self.certificate_problem,
            listeners=(ListenerEndpoint("tokens", process.endpoint),) if process.secured else (),
        )  # fmt: skip
        patch = objects.lease_patch(lease, process.pod_uid, 3, time.time_ns() // 1_000_000)
        try:
            self.store.patch(fakekinds.find("leases"), namespace, f"{cluster}.{process.node}", patch, "delaynode")
        except Refused:
            return  # the operator has not made the lease yet

    def _serve(self, process: Process, shards: dict[str, list[ShardObject]]) -> None:
        namespace, cluster = process.cluster.split("/")
        for name, shard in self._of(process, shards).items():
            spec, status = shard.spec, shard.status
            uid = str(spec.uid)
            if process.node in spec.replicas:
                self.names[uid] = spec.topic, spec.queue, cluster
            if process.node in spec.replicas and (status is not None and status.serving_epoch == spec.epoch):
                process.disk[uid] = spec.epoch
            if process.node not in spec.replicas:
                process.disk.pop(uid, None)
            if (spec.master, spec.incarnation) != (process.node, process.incarnation):
                continue
            process.disk[uid] = spec.epoch
            wanted = self._status(process, shard)
            if wanted != status:
                patch = objects.at_version(objects.status_patch(wanted), shard.version)
                try:
                    kind = fakekinds.find("delayshards")
                    self.store.patch(kind, namespace, f"{cluster}.{name}", patch, "delaynode", "status")
                except Refused:
                    continue  # another writer was faster: the next tick tries again
            self.kept[uid] = wanted.in_sync

    def _status(self, process: Process, shard: ShardObject) -> ShardStatus:
        spec = shard.spec
        here = {it.node: it for it in self.processes.values() if it.cluster == process.cluster and not it.frozen}
        in_sync = [
            it.entry(spec.uid)
            for node in spec.replicas
            if (it := here.get(node)) is not None
            and it.disk.get(str(spec.uid)) == spec.epoch
            and (node not in spec.leaving or node == process.node)
        ]
        handover = None
        if spec.switchover is not None and spec.switchover.to in here:
            handover = Handover(spec.epoch, 100)
        return ShardStatus(spec.epoch, process.incarnation, tuple(in_sync), handover)

    # ------------------------------------------------------------ reading
    def _all(self, plural: str) -> list[Json]:
        return self.store.list(fakekinds.find(plural))[0]

    def _pods(self) -> list[Json]:
        return [pod for pod in self._all("pods") if FINALIZER in pod["metadata"].get("finalizers", [])]

    def _shards(self) -> dict[str, list[ShardObject]]:
        found: dict[str, list[ShardObject]] = {}
        for body in self._all("delayshards"):
            namespace, cluster = body["metadata"]["namespace"], body["metadata"]["labels"]["delaycluster.io/cluster"]
            shard = objects.read_shard(Names(namespace, cluster), body)
            found.setdefault(f"{namespace}/{cluster}", []).append(shard)
        return found

    @staticmethod
    def _of(process: Process, shards: dict[str, list[ShardObject]]) -> dict[str, ShardObject]:
        return {shard.name: shard for shard in shards.get(process.cluster, ())}


def _address(number: str) -> str:
    """Of the pod with this number: of its own, so that a port-forward knows which pod is meant."""
    return f"127.0.0.{int(number) + 1}"


class _Answers(grpc.GenericRpcHandler):
    """ReplicaStatus and PurgeCopy of one process, and what is released in its shards."""

    def __init__(self, kubelet: Kubelet, process: Process) -> None:
        self._kubelet, self._process = kubelet, process

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        match details.method:
            case "/delay.v1.ReplicationService/ReplicaStatus":
                return grpc.unary_unary_rpc_method_handler(
                    self._answer,
                    request_deserializer=delay_pb2.ReplicaStatusRequest.FromString,
                    response_serializer=delay_pb2.ReplicaStatusResponse.SerializeToString,
                )
            case "/delay.v1.ReplicationService/PurgeCopy":
                return grpc.unary_unary_rpc_method_handler(
                    self._purge,
                    request_deserializer=delay_pb2.PurgeCopyRequest.FromString,
                    response_serializer=delay_pb2.PurgeCopyResponse.SerializeToString,
                )
            case "/delay.v1.DelayService/DescribeGroup":
                return grpc.unary_unary_rpc_method_handler(
                    lambda request, context: delay_pb2.DescribeGroupResponse(groups=self._kubelet.groups),
                    request_deserializer=delay_pb2.DescribeGroupRequest.FromString,
                    response_serializer=delay_pb2.DescribeGroupResponse.SerializeToString,
                )
            case "/delay.v1.DelayService/GetWheel":
                return grpc.unary_unary_rpc_method_handler(
                    self._wheel,
                    request_deserializer=delay_pb2.GetWheelRequest.FromString,
                    response_serializer=delay_pb2.GetWheelResponse.SerializeToString,
                )
            case "/delay.v1.DelayService/Forecast":
                return grpc.unary_unary_rpc_method_handler(
                    self._forecast,
                    request_deserializer=delay_pb2.ForecastRequest.FromString,
                    response_serializer=delay_pb2.ForecastResponse.SerializeToString,
                )
            case "/delay.v1.DelayService/PutSchedule":
                return grpc.unary_unary_rpc_method_handler(
                    self._put_schedule,
                    request_deserializer=schedules_pb2.PutScheduleRequest.FromString,
                    response_serializer=schedules_pb2.PutScheduleResponse.SerializeToString,
                )
            case "/delay.v1.DelayService/ListSchedules":
                return grpc.unary_unary_rpc_method_handler(
                    self._list_schedules,
                    request_deserializer=schedules_pb2.ListSchedulesRequest.FromString,
                    response_serializer=schedules_pb2.ListSchedulesResponse.SerializeToString,
                )
            case "/delay.v1.DelayService/DeleteSchedule":
                return grpc.unary_unary_rpc_method_handler(
                    self._delete_schedule,
                    request_deserializer=schedules_pb2.DeleteScheduleRequest.FromString,
                    response_serializer=schedules_pb2.DeleteScheduleResponse.SerializeToString,
                )
        return None

    def _put_schedule(self, request: Any, context: grpc.ServicerContext) -> Any:
        """It is due at midnight of the year 2100, and has fired twice."""
        if self._kubelet.refused_schedules:
            context.abort(grpc.StatusCode.UNAVAILABLE, self._kubelet.refused_schedules)
        state = self._kubelet.schedules.setdefault(
            (request.topic, request.schedule.id), schedules_pb2.ScheduleState(fired=2)
        )
        state.schedule.CopyFrom(request.schedule)
        state.version += 1
        state.paused = request.paused if request.HasField("paused") else state.paused
        state.note = request.note
        state.next_due.FromJsonString("2100-01-01T00:00:00Z")
        return schedules_pb2.PutScheduleResponse(state=state, changed=True)

    def _list_schedules(self, request: Any, context: grpc.ServicerContext) -> Any:
        """A page has one."""
        self._kubelet.schedule_lists += 1
        ids = sorted(it for topic, it in self._kubelet.schedules if topic == request.topic and it > request.page_token)
        ids = [it for it in ids if it.startswith(request.id_prefix)]
        return schedules_pb2.ListSchedulesResponse(
            schedules=[self._kubelet.schedules[request.topic, it] for it in ids[:1]],
            next_page_token=ids[0] if len(ids) > 1 else "",
        )

    def _delete_schedule(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._kubelet.schedules.pop((request.topic, request.id), None)
        return schedules_pb2.DeleteScheduleResponse()

    def _led(self) -> list[Any]:
        shards = self._kubelet._of(self._process, self._kubelet._shards())
        return [it.spec for it in shards.values() if it.spec.master == self._process.node]

    def _forecast(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Of each shard that it leads half of what is pending is due in the last bucket."""
        arrivals = np.zeros(request.buckets, "<i8")
        arrivals[-1] = self._kubelet.pending // 2
        topics = [
            delay_pb2.TopicForecast(topic=it.topic, queues=[it.queue], arrivals=arrivals.tobytes())
            for it in self._led()
        ]
        return delay_pb2.ForecastResponse(topics=topics)

    def _wheel(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Of the whole node what it leads, each with a slot of which the first half is within the range."""
        kubelet = self._kubelet
        if request.topic:
            return delay_pb2.GetWheelResponse(shards=[delay_pb2.ShardWheel(released=kubelet.released)])
        start, width, messages = (np.array([it]).tobytes() for it in (request.to_ms - 60_000, 120_000, kubelet.pending))
        return delay_pb2.GetWheelResponse(
            shards=[
                delay_pb2.ShardWheel(
                    topic=it.topic, queue=it.queue, pending=kubelet.pending, oldest_ms=kubelet.oldest_ms,
                    slot_start=start, slot_width=width, messages=messages,
                )
                for it in self._led()
            ]
        )  # fmt: skip

    def _purge(self, request: Any, context: grpc.ServicerContext) -> Any:
        process, kubelet = self._process, self._kubelet
        with kubelet.lock:
            shards = kubelet._of(process, kubelet._shards()).values()
            if any(it.spec.uid == request.uid and process.node in it.spec.replicas for it in shards):
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it is no orphan")
            if request.pending != kubelet.pending or process.disk.pop(str(request.uid), None) is None:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"there is no such copy with {request.pending}")
        return delay_pb2.PurgeCopyResponse()

    def _answer(self, request: Any, context: grpc.ServicerContext) -> Any:
        process = self._process
        if process.frozen:
            time.sleep(2)
        known = dict(process.disk)  # one step to Python: no lock is waited for, an answer is quick
        answer = delay_pb2.ReplicaStatusResponse(node=process.node, incarnation=process.incarnation, listed=True)
        for uid, epoch in known.items():
            topic, queue, cluster = self._kubelet.names[uid]
            damaged = self._kubelet.damaged.get((uid, process.node), "")
            answer.copies.add(
                uid=int(uid),
                topic=topic,
                queue=queue,
                cluster=cluster,
                entry=process.entry(int(uid)),
                role=delay_pb2.ReplicaState.DAMAGED if damaged else delay_pb2.ReplicaState.SLAVE,
                damaged=damaged,
                epoch=epoch,
                log_epoch=epoch,
                log_end=self._kubelet.log_end,
                committed=100,
                kept_epoch=epoch,
                kept_in_sync=self._kubelet.kept.get(uid, ()),
                pending=self._kubelet.pending,
            )
        return answer
