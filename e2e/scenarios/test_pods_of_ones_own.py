"""What people add to the pods, the Service and the settings, on a real Kubernetes."""

from __future__ import annotations

import time

from e2e.harness.delaycluster import ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, wait_until

USER = 23_456  # in no /etc/passwd
CALM_SECONDS = 10
HOLD = ["python", "-c", "import signal; signal.sigwait([signal.SIGTERM])"]


def restricted(name: str, image: str, **more: object) -> dict[str, object]:
    context = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {"name": name, "image": image, "securityContext": context, **more}


def test_pods_run_with_what_people_add_and_nothing_is_applied_twice(
    kube: Kubectl, operator: Release, namespace: str, image: str
) -> None:
    kube("create", "configmap", "issuer", "--from-literal=name=example", "--namespace", namespace)
    cluster = ClusterUnderTest(kube, "own", namespace)
    port = [{"containerPort": 9000}]
    cluster.apply(
        nodes=2,
        replicas=2,
        topics=[{"name": "t", "queues": 2}],
        storage={"size": "1Gi"},
        settings={"maxConnections": 500, "minFree": "100Mi", "connectionAge": "30m"},
        service={"type": "NodePort", "annotations": {"example.com/team": "shop"}, "externalTrafficPolicy": "Local"},
        podTemplate={
            "securityContext": {"runAsUser": USER, "runAsGroup": 0, "fsGroup": USER},
            "volumes": [{"name": "issuer", "configMap": {"name": "issuer"}}],
            "volumeMounts": [{"name": "issuer", "mountPath": "/etc/issuer", "readOnly": True}],
            "initContainers": [restricted("proxy", image, command=HOLD, restartPolicy="Always")],
            "sidecars": [restricted("logs", image, command=HOLD, ports=port, stdin=False)],
            "serviceAccountAnnotations": {"example.com/role": "delay"},
            "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["issuer.example.com"]}],
        },
    )
    cluster.wait_whole()
    pod = cluster.pods()["n0"]
    ready = {it["name"]: it["ready"] for it in pod["status"]["containerStatuses"]}
    assert ready == {"node": True, "logs": True}
    inside = ("exec", pod["metadata"]["name"], "--container=node", "--namespace", namespace, "--")
    assert kube(*inside, "id", "-u").strip() == str(USER)
    assert kube(*inside, "cat", "/etc/issuer/name") == "example"
    assert "issuer.example.com" in kube(*inside, "cat", "/etc/hosts")
    assert "--max-connections=500" in pod["spec"]["containers"][0]["args"]
    service = kube.get("service", "own-client", namespace)
    assert (service["spec"]["type"], service["metadata"]["annotations"]["example.com/team"]) == ("NodePort", "shop")
    account = kube.get("serviceaccount", "own-node", namespace)
    assert account["metadata"]["annotations"]["example.com/role"] == "delay"

    def applied() -> int:
        told = [it for it in cluster.events() if it["reason"] == "ObjectApplied"]
        return sum(it.get("count", 1) for it in told if "Service" in it["message"] or "StatefulSet" in it["message"])

    before = applied()
    time.sleep(CALM_SECONDS)
    assert applied() == before, "what the API server fills in or leaves out is no difference"

    cluster.edit(service={"type": "ClusterIP", "externalTrafficPolicy": None})
    wait_until(
        "the Service is of type ClusterIP again",
        lambda: [] if kube.get("service", "own-client", namespace)["spec"]["type"] == "ClusterIP" else ["NodePort"],
        30,
    )


def test_names_that_are_the_operators_are_refused(kube: Kubectl, operator: Release, namespace: str) -> None:
    cluster = ClusterUnderTest(kube, "taken", namespace)
    cluster.apply(nodes=1, replicas=1, storage={"size": "1Gi"})
    patch = '{"spec":{"podTemplate":{"volumes":[{"name":"data","emptyDir":{}}]}}}'
    told = kube.refused("patch", "dlc", "taken", "--namespace", namespace, "--type=merge", "-p", patch)
    assert "the volumes data, tmp, certificates, peer-certificates, client-ca are the operator's own" in told
