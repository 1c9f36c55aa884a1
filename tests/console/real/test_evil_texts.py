"""What others name, write and answer is text in the browser, also where the Content-Security-Policy is not there.

The browser leaves the policy out, so that a script that got into a page would run, and be seen to have run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import pytest
from delayclient.admin.schedules import Schedule
from delayclient.sync import Admin, Consumer, Producer
from delaylocal import LocalCluster
from playwright.sync_api import Browser, Page, Route

from tests.console.support.browser import ConsoleBrowser, chromium, needs_browser, until
from tests.console.support.console_process import running_console
from tests.console.support.evil import MARKUP, TEXTS, every, harmless
from tests.console.support.lying_node import lying_node

pytestmark = needs_browser()


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def seen(cluster: LocalCluster, pictures: Path, chrome: Browser) -> Iterator[ConsoleBrowser]:
    options = ("--allow-changes", "--data", str(cluster.data))
    with running_console(cluster.endpoints[0], *options) as link:
        made = ConsoleBrowser(chrome, link, pictures, bypass_csp=True)
        made.context.set_default_timeout(10_000)
        yield made
        made.close()


def test_the_browser_would_run_what_is_not_escaped(seen: ConsoleBrowser) -> None:
    """Else nothing here could fail."""
    page = seen.open("/wheel")
    page.route("**/unescaped", lambda it: it.fulfill(body=f"<main>{TEXTS[0]}</main>", content_type="text/html"))
    page.goto(seen.base + "/unescaped")
    page.wait_for_function("() => window.ran >= 1")
    assert page.locator(MARKUP).count() >= 2
    seen.errors.clear()


@every
def test_a_message(seen: ConsoleBrowser, endpoint: str, text: str) -> None:
    with Producer(endpoint) as producer:
        sent = producer.send("evil", text, delay="3h", key=text, tag=text, properties={text: text})
    seen.open(f"/pending?{urlencode({'topic': 'evil', 'key': text})}")
    harmless(seen, text)
    page = seen.open(f"/pending/message?handle={sent.handle}")
    assert page.inner_text("pre") == text
    assert seen.text().count(text) >= 4, "body, key, tag, and the property's name and value"
    harmless(seen)
    page = seen.open(f"/pending?{urlencode({'topic': 'evil', 'key': text})}")
    page.click("text=Cancel all with this key")
    harmless(seen, f"with the key {text}?")
    seen.page.click("button[name=confirmed]")
    harmless(seen, "1 of 1 cancelled.")


@every
def test_a_schedule(seen: ConsoleBrowser, endpoint: str, text: str) -> None:
    with Admin(endpoint) as admin:
        admin.schedules.put(Schedule("evil", text, text, cron=["0 9 * * *"], key=text, tag=text))
        page = seen.open("/schedules?topic=evil")
        harmless(seen, text)
        page.locator("tbody a", has_text=text).click()
        harmless(seen, text)
        page.fill("input[name=note]", text)
        page.click("main button:text-is('Pause')")
        harmless(seen, f"Pause the schedule {text} of evil?")
        page.click("button[name=confirmed]")
        harmless(seen, text)
        assert admin.schedules.get("evil", text).note == text
        seen.open("/schedules?topic=evil")
        harmless(seen, f": {text}")
        admin.schedules.delete("evil", text)


@every
def test_a_dead_letter_and_its_reason(seen: ConsoleBrowser, endpoint: str, text: str) -> None:
    with Producer(endpoint) as producer:
        producer.send("evil", text, delay=0, key=text, tag=text)
    with Consumer(endpoint, "evil", "judge") as consumer:
        consumer.nack(consumer.receive(), dead=True, reason=text)
    with Admin(endpoint) as admin:
        until(lambda: sum(it.dead for it in admin.groups("evil", "judge")) == 1, "it is a dead letter")
    page = seen.open("/dead-letters/group?topic=evil&group=judge")
    assert page.locator("tbody tr").first.inner_text().count(text) == 4, "key, tag, body and reason"
    harmless(seen)
    page.click("text=Drop all 1")
    seen.confirm("Give up all 1 dead letters")


@every
def test_a_group(seen: ConsoleBrowser, endpoint: str, text: str) -> None:
    with Producer(endpoint) as producer, Consumer(endpoint, "evil", text) as consumer:
        producer.send("evil", "x", delay=0)
        consumer.ack(consumer.receive())
    with Admin(endpoint) as admin:
        until(lambda: len(admin.groups("evil", text)) > 0, "the group is known")
        page = seen.open("/groups?topic=evil")
        harmless(seen, text)
        page.locator("tbody a", has_text=text).first.click()
        harmless(seen, text)
        page.click("text=Delete the group")
        harmless(seen, f"Delete the group {text}")
        admin.delete_group("evil", text)


@every
def test_an_address_and_a_form(seen: ConsoleBrowser, text: str) -> None:
    for path, status in (
        (f"/wheel?{urlencode({'topic': text})}", 400),
        (f"/wheel?{urlencode({'by': text})}", 400),
        (f"/pending?{urlencode({'topic': text, 'key': text, 'from': text})}", 400),
        (f"/groups/one?{urlencode({'topic': 'evil', 'group': text})}", 404),
        (f"/nodes?{urlencode({'node': text[:100]})}", 200),
        (f"/shards?{urlencode({'node': text[:100]})}", 200),
        (f"/audit?{urlencode({'text': text})}", 200),
        (f"/schedules?{urlencode({'topic': 'evil', 'prefix': text[:100]})}", 200),
        (f"/{quote(text, safe='')}", 404),
    ):
        seen.open(path, status)
        seen.errors = [it for it in seen.errors if "Failed to load resource" not in it]
        harmless(seen)


@every
def test_a_host_header(seen: ConsoleBrowser, text: str) -> None:
    """Browsers send no such one, so it is sent by hand and its answer shown to the browser."""
    connection = HTTPConnection(urlsplit(seen.base).netloc, timeout=30)
    connection.putrequest("GET", "/wheel", skip_host=True)
    connection.putheader("Host", text)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    assert answer.status in (400, 421)
    assert "Set-Cookie" not in answer.headers

    def answered(route: Route) -> None:
        route.fulfill(body=body, content_type="text/html")

    seen.page.route("**/by-another-host", answered)
    seen.page.goto(f"{seen.base}/by-another-host")
    assert seen.page.evaluate("window.ran ?? null") is None
    assert seen.page.locator(MARKUP).count() == 0


@every
def test_names_of_topics_and_nodes(chrome: Browser, pictures: Path, text: str) -> None:
    """No real node has such names; one that lies could."""
    due_ms = time.time_ns() // 60_000_000_000 * 60_000 + 3_600_000
    with lying_node(text, text, due_ms) as endpoint, running_console(endpoint) as link:
        window = ConsoleBrowser(chrome, link, pictures, bypass_csp=True)
        for by in ("node", "topic", "shard"):
            page: Page = window.open(f"/wheel?{urlencode({'by': by, 'topic': text})}&live=off")
            harmless(window, text)
            page.locator("#cells").focus()
            assert text in page.inner_text(".tip")
            harmless(window)
        page.locator("#cells").press("Enter")
        page.wait_for_url("**/pending?*")
        assert dict(page.evaluate("[...new URL(location.href).searchParams]"))["topic"] == text
        window.close()


@every
def test_a_line_of_the_audit_log(seen: ConsoleBrowser, endpoint: str, cluster: LocalCluster, text: str) -> None:
    with Admin(endpoint) as admin:
        admin.schedules.put(Schedule("evil", f"audited {text}", "x", cron=["0 9 * * *"]))
    page = seen.open("/schedules/one?" + urlencode({"topic": "evil", "id": f"audited {text}"}))
    page.click("main button:text-is('Trigger')")
    seen.confirm("once, now?")
    seen.open(f"/audit?{urlencode({'event': 'audit-console', 'text': text[:20]})}")
    harmless(seen, f"audited {text} has fired" if "'" not in text and '"' not in text else "has fired")
