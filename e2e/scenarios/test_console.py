"""spec.console: the console in the cluster, signed in to by tokens of Kubernetes, and `delayctl report` of it all."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from e2e.harness.consoles import forwarded
from e2e.harness.delaycluster import API_VERSION, ClusterUnderTest
from e2e.harness.helm import Release
from e2e.harness.kubectl import Kubectl, Object, wait_until
from e2e.scenarios.test_security import secret
from tests.console.support.cluster_console import ClusterConsole
from tests.security.authority import Authority

NAME = "shop"
CONSOLE = f"{NAME}-console"
SECONDS = 120.0
DUE_BODY, KEY = "a body that no report has", "a-key-that-no-report-has"
PAGES = ("/wheel", "/pending?topic=orders", "/groups", "/dead-letters", "/schedules", "/sinks", "/nodes", "/shards",
         "/rebalance", "/audit")  # fmt: skip
LOOK: list[Object] = [  # what docs/security.md says that one needs
    {"apiGroups": [""], "resources": ["pods", "pods/log", "configmaps"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list"]},
    {
        "apiGroups": ["delaycluster.io"],
        "resources": ["delayclusters", "delayshards", "delaysinks", "delayrebalances"],
        "verbs": ["get", "list", "watch"],
    },
]
ALL: Object = {"topic": {"prefix": ""}}
DRAIN: list[Object] = [
    {"apiGroups": ["delaycluster.io"], "resources": ["delayclusters", "delayshards"], "verbs": ["patch", "administer"]}
]


def account(name: str, *rules: Object) -> list[Object]:
    """A ServiceAccount for people: it may create its own token, and what the rules say."""
    own: Object = {
        "apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [name], "verbs": ["create"],
    }  # fmt: skip
    named = {"metadata": {"name": name}}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", **named},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", **named, "rules": [own, *rules]},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", **named, "roleRef": ref,
            "subjects": [{"kind": "ServiceAccount", "name": name}],
        },
    ]  # fmt: skip


def user(name: str, *rules: Object) -> Object:
    spec = {"cluster": {"name": NAME}, "serviceAccounts": [{"name": name}], "rules": [*rules]}
    return {"apiVersion": API_VERSION, "kind": "DelayUser", "metadata": {"name": name}, "spec": spec}


class Shop:
    """A cluster with security and a console. ca: a file."""

    def __init__(self, cluster: ClusterUnderTest, ca: Path) -> None:
        self.cluster, self.kube, self.namespace, self.ca = cluster, cluster.kube, cluster.namespace, ca

    def token(self, account: str) -> str:
        return self.kube("create", "token", account, "--namespace", self.namespace).strip()

    def sign_in(self, console: ClusterConsole, account: str) -> str:
        """By a token of Kubernetes; the cookie."""
        answer = console.ask("/sign-in", {"with": "kubernetes", "token": self.token(account), "account": ""})
        assert answer.status == 303, answer.visible
        return answer.cookie

    def pod(self) -> Object:
        selector = f"delaycluster.io/cluster={NAME},app.kubernetes.io/component=console"
        pods = self.kube.list("pods", self.namespace, selector)
        (found,) = [it for it in pods if "deletionTimestamp" not in it["metadata"]]
        return found

    def wait_console(self) -> None:
        def lacks() -> list[str]:
            if not self.kube.exists("deployment", CONSOLE, self.namespace):
                return ["there is no Deployment"]
            found = self.kube.get("deployment", CONSOLE, self.namespace)
            status = found.get("status", {})
            if status.get("observedGeneration") != found["metadata"]["generation"]:
                return ["the Deployment has not been seen yet"]
            if status.get("readyReplicas") == status.get("updatedReplicas") == 1:
                return []
            return [self.kube("logs", f"deployment/{CONSOLE}", "--namespace", self.namespace, check=False)[-2_000:]]

        wait_until("the console is ready", lacks, SECONDS)


@pytest.fixture
def shop(operator: Release, kube: Kubectl, namespace: str, tmp_path: Path) -> Shop:
    """Three people: `keeper` may look, and drain nodes; `looker` may look; `stranger` has a token of Kubernetes."""
    cluster, ca = ClusterUnderTest(kube, NAME, namespace), Authority(NAME)
    name, node = f"{NAME}-client.{namespace}.svc", f"spiffe://delaycluster/ns/{namespace}/cluster/{NAME}/role/node"
    (tmp_path / "ca.crt").write_bytes(ca.pem)
    kube.apply(
        secret("nodes", ca.issue(name, node), ca),
        secret("browsers", ca.issue("localhost", f"{CONSOLE}.{namespace}.svc"), ca),
        *account("keeper", *LOOK, *DRAIN),
        *account("looker", *LOOK),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "stranger"}},
        user("keeper", {"operations": ["Admin"]}, {"operations": ["Produce", "Cancel", "Browse"], **ALL}),
        user("looker", {"operations": ["Browse"], **ALL}),
        namespace=namespace,
    )
    cluster.apply(
        nodes=2, replicas=1, storage={"size": "1Gi"}, topics=[{"name": "orders", "queues": 2}],
        security={"mode": "Required", "certificates": {"secrets": {"server": "nodes"}}},
        monitoring={"metricsAuthentication": "Token"},
        console={"allowChanges": True, "certificateSecret": "browsers"},
        networkPolicy={"console": [{"podSelector": {}}]},
    )  # fmt: skip
    cluster.wait_whole()
    made = Shop(cluster, tmp_path / "ca.crt")
    made.wait_console()
    return made


@pytest.mark.quick
def test_people_see_and_change_what_their_own_tokens_let_them(shop: Shop, tmp_path: Path) -> None:
    """The console itself may nothing: its pod has no token, and what its visitors may not is refused by who asks them,
    nodes or the API server."""
    cluster, kube, namespace = shop.cluster, shop.kube, shop.namespace
    by_keeper = ("--service-account", f"{namespace}/keeper")
    cluster.delayctl("produce", "orders", "--delay", "1h", "--key", KEY, "--body", DUE_BODY, *by_keeper)
    volumes = shop.pod()["spec"]["volumes"]
    assert not [it for it in volumes if "projected" in it], "a token for the pod"
    with forwarded(cluster, shop.ca) as console:
        assert console.ask("/groups").status == 401
        stranger = {"with": "kubernetes", "token": shop.token("stranger"), "account": ""}
        refused = console.ask("/sign-in", stranger)
        assert (refused.status, refused.cookie) == (403, "")
        assert "may not create a token of ServiceAccount" in refused.visible
        for borrowed in (f"{namespace}/keeper", "keeper"):
            posing = console.ask("/sign-in", {**stranger, "token": shop.token("looker"), "account": borrowed})
            assert (posing.status, posing.cookie) == (403, ""), posing.visible

        keeper, looker = shop.sign_in(console, "keeper"), shop.sign_in(console, "looker")
        for cookie, hidden in ((keeper, {}), (looker, {"/nodes": 403})):
            found = {path: console.ask(path, cookie=cookie) for path in PAGES}
            wrong = {path: page.visible for path, page in found.items() if page.status != hidden.get(path, 200)}
            assert not wrong, wrong
        assert console.ask("/pending?topic=orders", cookie=looker).text.count("/pending/message?handle=") == 1
        node = shop.cluster.shards("orders")[0].replicas[0]
        form = {"node": node, "csrf": console.ask("/groups", cookie=looker).csrf, "confirmed": "1"}
        refused = console.ask("/nodes/drain", form, looker)
        assert refused.status >= 400, refused.visible
        assert "may not patch delayclusters" in refused.visible
        form = {"node": node, "csrf": console.ask("/nodes", cookie=keeper).csrf}
        asked = console.ask("/nodes/drain", form, keeper)
        assert f"Empty {node}?" in asked.visible, asked.visible
        done = console.ask("/nodes/drain", {**form, "confirmed": "1"}, keeper)
        assert "is being emptied" in done.visible, done.visible
        annotations = cluster.object["metadata"]["annotations"]
        assert annotations[f"delaycluster.io/drain-{node}"].startswith(f"system:serviceaccount:{namespace}:keeper ")
        wait_until("the node is empty", lambda: held(cluster, node), SECONDS)
        assert "audit-refused" in console.ask("/audit", cookie=keeper).text

    kube.delete("pod", shop.pod()["metadata"]["name"], namespace)
    shop.wait_console()
    with forwarded(cluster, shop.ca) as console:
        assert console.ask("/groups", cookie=keeper).status == 401, "sessions are in the pod that is gone"
        assert console.ask("/groups", cookie=shop.sign_in(console, "keeper")).status == 200

    assert_reported(shop, tmp_path / "report.tar.gz")
    cluster.edit(console=None)
    kinds = ("deployment", "service", "networkpolicy", "serviceaccount")
    wait_until("it is gone", lambda: [it for it in kinds if kube.exists(it, CONSOLE, namespace)], SECONDS)


def held(cluster: ClusterUnderTest, node: str) -> list[str]:
    return [it.name for it in cluster.shards() if node in it.replicas]


def assert_reported(shop: Shop, path: Path) -> None:
    """`delayctl report` has all there is to have, and neither bodies nor secrets."""
    shop.cluster.delayctl("report", "--service-account", f"{shop.namespace}/keeper", "-o", str(path))
    with tarfile.open(path) as archive:
        files = {}
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None
            files[entry.name.partition("/")[2]] = file.read().decode()
    assert json.loads(files["index.json"])["missing"] == []
    console = shop.pod()["metadata"]["name"]
    wanted = {
        "objects/delaycluster.json", "objects/delayshards.json", "objects/delayusers.json", "objects/deployments.json",
        "objects/networkpolicies.json", "events.json", "operator/deployments.json", f"logs/{NAME}-0-node.log",
        f"logs/{console}-console.log", "metrics/n0.txt", "metrics/n1.txt", "nodes.json", "load.json",
    }  # fmt: skip
    assert wanted <= files.keys(), sorted(files)
    key = shop.kube.get("secret", "nodes", shop.namespace)["data"]["tls.key"]
    for name, text in files.items():
        for planted in (DUE_BODY, KEY, key, "PRIVATE KEY", "eyJhbGciOi"):
            assert planted not in text, f"{planted} in {name}"
