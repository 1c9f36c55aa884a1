"""The wheel page in a browser, on real nodes."""

from __future__ import annotations

import time

from delayclient.sync import Producer

from tests.console.support.browser import ConsoleBrowser, needs_browser

pytestmark = needs_browser()
HOUR_MS = 3_600_000


def send(endpoint: str, topic: str, dues_ms: list[int]) -> None:
    with Producer(endpoint) as producer:
        for number, due_ms in enumerate(dues_ms):
            producer.send(topic, f"message {number}", at=due_ms, key=f"key-{number % 10}")


def test_the_wheel_shows_a_herd_and_zooms_in_on_it(window: ConsoleBrowser, endpoint: str) -> None:
    herd_ms = (time.time_ns() // 1_000_000 // HOUR_MS + 5) * HOUR_MS + 10 * 60_000
    send(endpoint, "herds", [herd_ms + n for n in range(300)])
    page = window.open("/wheel?topic=herds&by=shard")
    assert "300 messages wait" in window.text()
    assert page.locator(".uplot canvas").count() == 1
    busiest = page.locator("table").nth(1).locator("tbody tr").first
    assert " 300 " in f" {busiest.inner_text()} ".replace("\t", " ")
    window.check("wheel-shards")
    busiest.locator("a").click()
    busiest = page.locator("table").nth(1).locator("tbody tr").first
    assert busiest.locator("time").get_attribute("data-ms") == str(herd_ms)
    assert "A column is 1 m" in window.text()
    window.check("wheel-zoomed")


def test_the_wheel_is_moved_by_keys(window: ConsoleBrowser) -> None:
    page = window.open("/wheel?topic=zooms")
    page.locator("#plot").press("+")
    page.wait_for_url("**from=*")
    assert "to=" in page.url
    narrow = page.url
    page.locator("#plot").press("-")
    page.wait_for_function("was => location.href !== was", arg=narrow)


def test_the_wheel_is_live(window: ConsoleBrowser, endpoint: str) -> None:
    page = window.open("/wheel?topic=zooms&span=1d")
    page.locator("#plot").focus()
    send(endpoint, "zooms", [time.time_ns() // 1_000_000 + 3 * HOUR_MS] * 7)
    page.wait_for_function("() => JSON.parse(document.getElementById('picture').textContent).total.includes(7)")
    assert page.evaluate("document.activeElement.id") == "plot", "looking again takes the focus away from nothing"
    page.click("text=Live: on")
    assert page.get_attribute("#live", "hx-get") is None


def test_colours_and_times_are_chosen_and_kept(window: ConsoleBrowser) -> None:
    page = window.open("/wheel")
    assert page.locator("time").first.inner_text().endswith("Z")
    page.click("#zone")
    assert not page.locator("time").first.inner_text().endswith("Z")
    page.click("#theme")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    window.open("/wheel?by=topic")
    assert page.inner_text("#zone") == "Local"
    window.check("wheel-dark")
    page.click("#theme")
    page.click("#zone")


def test_what_cannot_be_meant_is_said(window: ConsoleBrowser) -> None:
    window.open("/wheel?from=tomorrow", 400)
    assert "'tomorrow' is not a time" in window.text()
    window.open("/wheel?by=colour", 400)
    assert "expected one of node, topic, shard" in window.text()
    window.open("/wheel?topic=%3Cscript%3Ealert(1)%3C/script%3E", 400)
    assert "<script>alert(1)</script>" in window.text()
    window.open("/wheel?from=2030-01-01T00:00:00Z&to=2029-01-01T00:00:00Z", 400)
    assert "not later than from" in window.text()
    window.check("refused")
