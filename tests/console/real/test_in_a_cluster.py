"""The console as in a cluster: who gets in, with what, and what they may do there. Real nodes with TLS and tokens."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path

import pytest
from delayclient import Tls
from delayclient.admin.schedules import Schedule
from delayclient.sync import Admin
from delayconsole.cluster_sign_in import COOKIE
from delaylocal import LocalCluster
from delayregistry.model import TopicSpec

from tests.console.support.browser import ConsoleBrowser, chromium, needs_browser, until
from tests.console.support.cluster_console import ACCOUNT, KUBE_TOKEN, ClusterConsole, TokenServer, cluster_console


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    data = tmp_path_factory.mktemp("secured")
    with LocalCluster(data, nodes=1, topics=[TopicSpec("orders", 1)], port=0, secure=True) as made:
        made.wait_ready()
        yield made


@pytest.fixture(scope="module")
def node_token(secured: LocalCluster) -> str:
    assert secured.keys is not None
    return secured.keys.token_file.read_text().strip()


@pytest.fixture(scope="module")
def kubernetes(node_token: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    made = TokenServer(node_token, tmp_path_factory.mktemp("kubernetes"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def console(
    secured: LocalCluster, kubernetes: TokenServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterConsole]:
    assert secured.keys is not None
    directory = tmp_path_factory.mktemp("console")
    with cluster_console(secured.keys.directory, secured.endpoints[0], kubernetes, directory) as made:
        yield made


@pytest.fixture(scope="module")
def changing(
    secured: LocalCluster, kubernetes: TokenServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterConsole]:
    """One that may change things."""
    assert secured.keys is not None
    directory = tmp_path_factory.mktemp("changing")
    options = secured.keys.directory, secured.endpoints[0], kubernetes, directory, "--allow-changes"
    with cluster_console(*options) as made:
        yield made


def with_nodes(console: ClusterConsole, token: str) -> str:
    """Signs in; the cookie."""
    answer = console.ask("/sign-in", {"with": "nodes", "token": token})
    assert answer.status == 303, answer.visible
    return answer.cookie


def with_kubernetes(console: ClusterConsole, account: str = "") -> str:
    answer = console.ask("/sign-in", {"with": "kubernetes", "token": KUBE_TOKEN, "account": account})
    assert answer.status == 303, answer.visible
    return answer.cookie


def test_without_a_session_there_is_nothing_but_the_sign_in(console: ClusterConsole) -> None:
    for path in ("/", "/groups", "/nodes", "/shards/one?shard=orders-0", "/nowhere"):
        answer = console.ask(path)
        assert answer.status == 401
        assert "Token of Kubernetes" in answer.visible
        assert "orders-0" not in answer.text
    assert console.ask("/nodes/drain", {"node": "n0"}).status == 401
    assert console.ask("/healthz", Host="10.0.0.7:7190").text == "ok", "the kubelet asks by an address"


@pytest.mark.parametrize("forged", [f"{COOKIE}=", f"{COOKIE}={'0' * 64}", f"{COOKIE}=../../etc", "delayconsole=x"])
def test_a_forged_cookie_is_no_session(console: ClusterConsole, forged: str) -> None:
    assert console.ask("/groups", cookie=forged).status == 401


def test_plain_text_and_older_tls_are_refused(console: ClusterConsole) -> None:
    plain = HTTPConnection("localhost", console.port, timeout=30)
    plain.request("GET", "/")
    with pytest.raises((RemoteDisconnected, ConnectionError, ssl.SSLError)):
        plain.getresponse()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for most, version in ((ssl.TLSVersion.TLSv1_3, "TLSv1.3"), (ssl.TLSVersion.TLSv1_2, None)):
        context.maximum_version = most
        assert spoken(console.port, context) == version


def spoken(port: int, context: ssl.SSLContext) -> str | None:
    """The version of TLS; None: refused."""
    with socket.create_connection(("localhost", port), 10) as plain:
        try:
            with context.wrap_socket(plain) as secured:
                return secured.version()
        except ssl.SSLError:
            return None


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "localhost@evil.example", "", "[::1]:443"])
def test_another_name_is_refused(console: ClusterConsole, host: str) -> None:
    assert console.ask("/", Host=host).status in (400, 421)


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://localhost", "https://localhost.evil"])
def test_no_other_site_signs_anybody_in_or_out(console: ClusterConsole, node_token: str, origin: str | None) -> None:
    answer = console.ask("/sign-in", {"with": "nodes", "token": node_token}, Origin=origin)
    assert (answer.status, answer.cookie) == (403, "")
    cookie = with_nodes(console, node_token)
    assert console.ask("/sign-out", {}, cookie, Origin=origin).status == 403
    assert console.ask("/groups", cookie=cookie).status == 200


@pytest.mark.parametrize(
    ("token", "says"),
    [
        ("guessed", "the nodes do not know this token"),
        ("", "no token was given"),
        ("x" * 9_000, "at most 8,192"),
        ("tök€n", "a token has no such characters"),
    ],
)
def test_a_token_that_the_nodes_do_not_know_lets_nobody_in(console: ClusterConsole, token: str, says: str) -> None:
    answer = console.ask("/sign-in", {"with": "nodes", "token": token})
    assert (answer.status, answer.cookie) == (403, "")
    assert says in answer.visible
    assert token == "" or token not in answer.text


def test_who_signs_in_with_a_token_for_the_nodes_sees_messages_and_no_objects(
    console: ClusterConsole, node_token: str
) -> None:
    answer = console.ask("/sign-in", {"with": "nodes", "token": node_token})
    flags = answer.headers["Set-Cookie"].lower()
    assert answer.cookie.startswith(f"{COOKIE}=")
    assert all(flag in flags for flag in ("httponly", "secure", "samesite=strict", "path=/"))
    assert "domain" not in flags
    groups = console.ask("/groups", cookie=answer.cookie)
    assert groups.status == 200
    assert "token:admin" in groups.visible, "as the nodes know them"
    assert node_token not in groups.text + str(groups.headers)
    nodes = console.ask("/nodes", cookie=answer.cookie)
    drained = console.ask("/nodes/drain", {"node": "n0", "csrf": nodes.csrf}, answer.cookie)
    assert drained.status == 409
    assert "sign in with a token of Kubernetes" in drained.visible
    assert "objects of Kubernetes" in console.ask("/sinks", cookie=answer.cookie).visible


def test_a_token_of_kubernetes_is_shown_to_the_api_server_alone(
    console: ClusterConsole, kubernetes: TokenServer, node_token: str
) -> None:
    kubernetes.asked.clear()
    kubernetes.sinks = [
        {"metadata": {"name": "hooks"}, "spec": {"cluster": {"name": "orders"}, "topic": "orders", "http": {"url": "https://a.example/<b>"}}},
        {"metadata": {"name": "others"}, "spec": {"cluster": {"name": "another"}, "topic": "orders"}},
        {"metadata": {"name": "odd"}, "spec": {"cluster": {"name": "orders"}}, "status": {"conditions": "none"}},
    ]  # fmt: skip
    cookie = with_kubernetes(console)
    assert kubernetes.asked[0][1].endswith("/selfsubjectreviews")
    assert kubernetes.asked[1][1] == "/api/v1/namespaces/shop/serviceaccounts/ops/token", "its own, as none was named"
    groups = console.ask("/groups", cookie=cookie)
    assert "system:serviceaccount:shop:ops" in groups.visible
    assert "delayctl --kube shop/orders --service-account shop/ops groups list" in groups.visible
    sinks = console.ask("/sinks", cookie=cookie)
    assert "hooks" in sinks.visible
    assert "odd" in sinks.visible
    assert "others" not in sinks.visible
    assert "<b>" not in sinks.text
    assert {token for _, _, token in kubernetes.asked} == {KUBE_TOKEN}, "never the one for the nodes"
    audit = console.ask("/audit", cookie=cookie)
    assert audit.status == 503
    assert "may not list pods: not yours" in audit.visible, "what Kubernetes does not let them do, the console does not"


@pytest.mark.parametrize(
    ("token", "account", "says"),
    [
        ("guessed", "", "Kubernetes does not let you in"),
        (KUBE_TOKEN, "shop/admin", "may not create a token of ServiceAccount shop/admin: not yours"),
        (KUBE_TOKEN, "../../secrets/x", "a ServiceAccount is NAME or NAMESPACE/NAME"),
        (KUBE_TOKEN, "a" * 400, "a ServiceAccount is NAME or NAMESPACE/NAME"),
    ],
)
def test_kubernetes_says_who_may_be_whom(console: ClusterConsole, token: str, account: str, says: str) -> None:
    answer = console.ask("/sign-in", {"with": "kubernetes", "token": token, "account": account})
    assert (answer.status, answer.cookie) == (403, "")
    assert says in answer.visible


def test_a_sign_out_ends_the_session_for_everybody_who_has_the_cookie(console: ClusterConsole, node_token: str) -> None:
    cookie, another = with_nodes(console, node_token), with_nodes(console, node_token)
    assert console.ask("/sign-out", {}, cookie).status == 303
    assert console.ask("/groups", cookie=cookie).status == 401
    assert console.ask("/groups", cookie=another).status == 200


def test_the_form_of_another_session_changes_nothing(console: ClusterConsole, node_token: str) -> None:
    mine, theirs = with_nodes(console, node_token), with_nodes(console, node_token)
    csrf = console.ask("/nodes", cookie=mine).csrf
    answer = console.ask("/nodes/drain", {"node": "n0", "csrf": csrf}, theirs)
    assert answer.status == 403
    assert "of another session" in answer.visible


def test_it_only_looks_unless_it_is_let(console: ClusterConsole, secured: LocalCluster, node_token: str) -> None:
    assert secured.keys is not None
    tls = Tls(ca=secured.keys.ca, server_name="localhost")
    with Admin(secured.endpoints[0], tls=tls, token=node_token) as admin:
        admin.schedules.put(Schedule("orders", "s", b"x", cron=["0 9 * * *"]))
        cookie = with_nodes(console, node_token)
        page = console.ask("/schedules/one?topic=orders&id=s", cookie=cookie)
        fields = {"topic": "orders", "id": "s", "csrf": page.csrf}
        asked = console.ask("/schedules/one/trigger", fields, cookie)
        assert asked.status == 200
        assert "This console is read-only" in asked.visible
        assert "schedules trigger orders s" in asked.visible, "the command that does it"
        assert console.ask("/schedules/one/trigger", {**fields, "confirmed": "1"}, cookie).status == 403
        assert admin.schedules.get("orders", "s").fired == 0


def test_who_changed_what_by_it_is_in_the_audit_logs_and_on_the_page(
    changing: ClusterConsole, secured: LocalCluster, kubernetes: TokenServer, node_token: str
) -> None:
    assert secured.keys is not None
    with Admin(secured.endpoints[0], tls=Tls(ca=secured.keys.ca, server_name="localhost"), token=node_token) as admin:
        admin.schedules.put(Schedule("orders", "audited", b"x", cron=["0 9 * * *"]))
    cookie = with_kubernetes(changing)
    fields = {"topic": "orders", "id": "audited"}
    fields["csrf"] = changing.ask("/schedules/one?topic=orders&id=audited", cookie=cookie).csrf
    done = changing.ask("/schedules/one/trigger", {**fields, "confirmed": "1"}, cookie)
    assert "has fired" in done.visible
    until(lambda: "schedules trigger orders audited" in "".join(changing.log), "the console's line was read")
    kubernetes.logs = {
        "node": {"orders-0": (secured.data / "logs/n0.log").read_text()},
        "console": {"orders-console-7": "".join(changing.log)},
    }
    try:
        page = changing.ask("/audit?text=trigger", cookie=cookie)
    finally:
        kubernetes.logs = None
    assert page.status == 200
    by_node = "administered token:admin Produce: TriggerSchedule topic 'orders'"
    assert by_node in page.visible, "as the node knows the visitor"
    by_console = f"done by the console {ACCOUNT} schedule trigger delayctl --kube shop/orders"
    assert by_console in page.visible, "and as Kubernetes does"
    assert "schedules trigger orders audited" in page.visible
    assert "orders-console-7" in page.visible
    assert node_token not in "".join(changing.log)
    assert KUBE_TOKEN not in "".join(changing.log)


@needs_browser()
def test_a_browser_signs_in_and_out(changing: ClusterConsole, node_token: str, pictures: Path) -> None:
    with chromium() as browser:
        window = ConsoleBrowser(browser, changing.origin, pictures, ignore_https_errors=True)
        window.errors.clear()  # the browser's own line about the status, 401
        window.check("sign-in")
        form = window.page.locator("form", has_text="With a token for the nodes")
        form.locator("input[name=token]").fill("guessed")
        form.locator("button").click()
        assert "the nodes do not know this token" in window.text()
        window.errors.clear()
        window.check("sign-in-refused")
        form.locator("input[name=token]").fill(node_token)
        form.locator("button").click()
        assert "messages wait" in window.text()
        assert "token:admin" in window.page.inner_text("header")
        window.check("signed-in")
        window.page.click("text=Sign out")
        assert "Sign in" in window.text()
        window.close()
