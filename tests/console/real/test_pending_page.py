"""The pending page in a browser, on real nodes: search, open, cancel, move, fire now."""

from __future__ import annotations

import os
import signal
import time
from urllib.parse import quote

import pytest
from delayclient.sync import Admin, Producer
from delaylocal import LocalCluster
from playwright.sync_api import expect

from tests.console.support.browser import ConsoleBrowser, needs_browser

pytestmark = needs_browser()
LARGEST = (bytes(range(256)) * 16_384)[: (4 << 20) - 64]
"""What a message of 4 MiB can have as its body, beside its key."""
XSS = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{7*7}}"


def in_hours(hours: float) -> int:
    return time.time_ns() // 1_000_000 + int(hours * 3_600_000)


def test_messages_are_searched_page_by_page_and_opened(window: ConsoleBrowser, endpoint: str) -> None:
    start = in_hours(2)
    with Producer(endpoint) as producer:
        for number in range(60):
            body = f'{{"order": {number}, "remind": "pay"}}'
            producer.send(
                "orders", body, at=start + number * 60_000, key=f"order-{number}", properties={"shop": "Köln"}
            )
    page = window.open("/pending")
    page.select_option("select[name=topic]", "orders")
    page.click("text=Search")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    dues = rows.locator("time").evaluate_all("all => all.map(one => Number(one.dataset.ms))")
    assert dues == [start + number * 60_000 for number in range(50)], "in order over all queues"
    window.check("pending")
    page.click("text=Next page")
    expect(rows).to_have_count(10)
    rows.last.locator("a").click()
    assert '"order": 59' in page.inner_text("pre")
    assert "order-59" in window.text()
    assert "Köln" in window.text()
    window.check("message")
    window.open(f"/pending?topic=orders&from={start + 60_000}&to={start + 5 * 60_000}")
    expect(rows).to_have_count(4)


def test_chosen_messages_are_cancelled_after_a_question(window: ConsoleBrowser, endpoint: str) -> None:
    with Producer(endpoint) as producer:
        handles = [producer.send("letters", "x", at=in_hours(3) + n).handle for n in range(6)]
    page = window.open("/pending?topic=letters")
    boxes = page.locator("tbody input[type=checkbox]")
    for number in (0, 2, 4):
        boxes.nth(number).check()
    page.click("button:text-is('Cancel')")
    assert "Cancel 3 messages of letters?" in window.text()
    assert f"cancel {handles[0]} {handles[2]} {handles[4]}" in window.text()
    window.check("confirm")
    page.click("text=Cancel: 3")
    assert "3 of 3 cancelled." in window.text()
    window.check("done")
    page.click("text=Back")
    expect(page.locator("tbody tr")).to_have_count(3)
    with Admin(endpoint) as admin:
        assert sorted(row.handle for row in admin.list_pending("letters")) == sorted(handles[1::2])
    page.check("input[data-all=handle]")
    expect(page.locator("tbody input:checked")).to_have_count(3)


def test_a_message_is_moved_and_fired(window: ConsoleBrowser, endpoint: str) -> None:
    with Producer(endpoint) as producer:
        handle = producer.send("moves", "move me", at=in_hours(3), key="mover").handle
    page = window.open(f"/pending/message?handle={handle}")
    page.fill("input[name=when]", "in a while")
    page.click("button:text-is('Move')")
    assert "expected a time such as" in window.text()
    window.errors.clear()  # the browser's own line about the status
    page = window.open(f"/pending/message?handle={handle}")
    page.fill("input[name=when]", "5h")
    page.click("button:text-is('Move')")
    assert f"reschedule --delay 5h {handle}" in window.text()
    page.click("text=Move: 1")
    assert "1 of 1 moved." in window.text()
    window.open(f"/pending/message?handle={handle}", 404)
    assert "given another time since" in window.text()
    page = window.open("/pending?topic=moves&key=mover")
    page.locator("tbody a").click()
    page.click("text=Fire now")
    page.click("text=Fire now: 1")
    assert "1 of 1 moved." in window.text()
    deadline_s = time.monotonic() + 60
    with Admin(endpoint) as admin:
        while sum(wheel.released for wheel in admin.wheel("moves")) != 1:
            assert time.monotonic() < deadline_s, "it was never released"
            time.sleep(0.1)


def test_all_messages_of_a_key_are_cancelled_with_their_count(window: ConsoleBrowser, endpoint: str) -> None:
    with Producer(endpoint) as producer:
        for number in range(20):
            producer.send("keys", "x", at=in_hours(1 + number), key="dentist" if number % 4 == 0 else f"k{number}")
    page = window.open("/pending?topic=keys&key=dentist")
    expect(page.locator("tbody tr")).to_have_count(5)
    page.click("text=Cancel all with this key")
    assert "Cancel all 5 messages of keys with the key dentist?" in window.text()
    with Admin(endpoint) as admin:
        admin.cancel([next(iter(admin.list_pending("keys", key="dentist"))).handle])
    page.click("text=Cancel all with this key: 5")
    assert "It was 5 when you were asked; now it is 4." in window.text()
    page.click("text=Cancel all with this key: 4")
    assert "4 of 4 cancelled." in window.text()
    with Admin(endpoint) as admin:
        assert len(list(admin.list_pending("keys"))) == 15


def test_what_others_put_into_messages_is_text(window: ConsoleBrowser, endpoint: str) -> None:
    with Producer(endpoint) as producer:
        handle = producer.send(
            "evil", XSS, at=in_hours(1), key=XSS, tag="<b>tag</b>", properties={XSS: XSS, "</dl>": "<script>"}
        ).handle
        binary = producer.send("evil", LARGEST, at=in_hours(2), key="binary").handle
    page = window.open(f"/pending?topic=evil&key={quote(XSS)}")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert XSS in window.text()
    window.check("evil-list")
    page = window.open(f"/pending/message?handle={handle}")
    assert page.inner_text("pre") == XSS
    assert page.locator("main script").count() == 0
    assert page.locator("main img").count() == 0
    window.check("evil-message")
    page.click("button:text-is('Cancel')")
    window.check("evil-confirm")
    started = time.monotonic()
    page = window.open(f"/pending/message?handle={binary}")
    assert "4.0 MiB, bytes; the first 4.0 KiB are shown" in window.text()
    assert time.monotonic() - started < 30
    window.check("binary")
    with page.expect_download() as download:
        page.click("text=Download all of it")
    assert download.value.path().read_bytes() == LARGEST


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/pending?topic=nothing", "there is no topic 'nothing'"),
        ("/pending?topic=orders&queue=99", "expected a number from 0 to 3"),
        ("/pending?topic=orders&queue=-1", "expected a number from 0 to 3"),
        ("/pending?topic=orders&from=soon", "'soon' is not a time"),
        ("/pending?topic=orders&rows=100000", "expected a number from 1 to 500"),
        ("/pending?topic=orders&after=1.2", "expected due.queue.seq"),
        ("/pending/message?handle=nonsense", "handle"),
        ("/pending?topic=orders&key=" + "k" * 2_000, "at most 1,024"),
    ],
)
def test_bad_input_is_said(window: ConsoleBrowser, path: str, said: str) -> None:
    window.open(path, 400)
    assert said in window.text()


def test_a_node_that_hangs_hides_its_own_shards_alone(
    window: ConsoleBrowser, cluster: LocalCluster, endpoint: str
) -> None:
    with Producer(endpoint) as producer:
        for number in range(40):
            producer.send("hung", "x", at=in_hours(2), key=f"k{number}")
    window.open("/wheel?topic=hung&by=shard")
    pid = cluster.pids["n2"]
    os.kill(pid, signal.SIGSTOP)
    try:
        page = window.open("/wheel?topic=hung&by=shard&live=off")
        assert "n2 has not" in window.text() or "no master now" in window.text()
        assert 0 < page.locator("tbody th[scope=row]").count() < 14
        window.check("a-node-hangs")
        window.open("/pending?topic=hung")
        assert "hung-" in window.text()
    finally:
        os.kill(pid, signal.SIGCONT)
    cluster.wait_ready()
