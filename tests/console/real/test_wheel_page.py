"""The wheel page in a browser, on real nodes."""

from __future__ import annotations

import re
import time
from collections import Counter
from urllib.parse import parse_qsl, urlsplit

from delayapi.units import DAY_MS, HOUR_MS, MINUTE_MS
from delayclient.sync import Admin, Producer
from playwright.sync_api import Page

from tests.console.support.browser import ConsoleBrowser, needs_browser

pytestmark = needs_browser()
TOTAL = "() => JSON.parse(document.getElementById('picture').textContent).total"


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
    with page.expect_navigation():
        busiest.locator("a").click()
    busiest = page.locator("table").nth(1).locator("tbody tr").first
    assert busiest.locator("time").get_attribute("data-ms") == str(herd_ms)
    assert "A column is 1 m" in window.text()
    window.check("wheel-zoomed")


def edges(page: Page) -> list[int]:
    """Where the columns of the picture begin and end."""
    return list(page.evaluate("() => JSON.parse(document.getElementById('picture').textContent).edges"))


def place_of(page: Page, ms: float, row: int) -> tuple[float, float]:
    """Where on the screen that time of a row is."""
    box = page.locator(".u-over").bounding_box()
    found = edges(page)
    rows = page.evaluate("() => JSON.parse(document.getElementById('picture').textContent).rows.length")
    assert box is not None
    return (
        box["x"] + box["width"] * (ms - found[0]) / (found[-1] - found[0]),
        box["y"] + box["height"] * (row + 0.5) / rows,
    )


def drag(page: Page, start_ms: float, end_ms: float) -> None:
    page.mouse.move(*place_of(page, start_ms, 0))
    page.mouse.down()
    page.mouse.move(*place_of(page, (start_ms + end_ms) / 2, 1))
    page.mouse.move(*place_of(page, end_ms, 1))
    with page.expect_navigation():
        page.mouse.up()


def queried(page: Page) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(page.url).query))


def test_a_drag_zooms_and_a_click_opens_the_messages_of_a_cell(window: ConsoleBrowser, endpoint: str) -> None:
    with Admin(endpoint) as admin:
        herd_ms = min(row.due_ms for row in admin.list_pending("herds"))
        of_queue = sum(row.queue == 2 for row in admin.list_pending("herds"))
    page = window.open("/wheel?topic=herds&by=shard&live=off")
    drag(page, herd_ms - HOUR_MS, herd_ms + HOUR_MS)
    asked = queried(page)
    assert abs(int(asked["from"]) - (herd_ms - HOUR_MS)) <= 10 * MINUTE_MS
    assert abs(int(asked["to"]) - (herd_ms + HOUR_MS)) <= 10 * MINUTE_MS
    assert (asked["topic"], asked["by"], asked["live"]) == ("herds", "shard", "off")
    assert "A column is 1 m" in window.text()
    page.mouse.move(*place_of(page, herd_ms + MINUTE_MS / 2, 2))
    assert f"herds-2 · {of_queue} messages of 300" in re.sub(r"· [-0-9]+ [:0-9]+Z ", "", page.inner_text(".tip"))
    window.check("wheel-dragged")
    with page.expect_navigation():
        page.mouse.click(*place_of(page, herd_ms + MINUTE_MS / 2, 2))
    assert queried(page) == {"topic": "herds", "queue": "2", "from": str(herd_ms), "to": str(herd_ms + MINUTE_MS)}
    assert f"{min(50, of_queue)} of herds" in window.text()
    assert {it.inner_text() for it in page.locator("tbody tr td:nth-child(4)").all()} == {"herds-2"}

    page = window.open(f"/wheel?by=topic&from={herd_ms - HOUR_MS}&to={herd_ms + HOUR_MS}&live=off")
    rows = page.evaluate("() => JSON.parse(document.getElementById('picture').textContent).rows")
    with page.expect_navigation():
        page.mouse.click(*place_of(page, herd_ms + MINUTE_MS / 2, rows.index("herds")))
    assert queried(page) == {"topic": "herds", "from": str(herd_ms), "to": str(herd_ms + MINUTE_MS)}

    page = window.open(f"/wheel?topic=herds&from={herd_ms - HOUR_MS}&to={herd_ms + HOUR_MS}&live=off")
    with page.expect_navigation():
        page.mouse.click(*place_of(page, herd_ms + MINUTE_MS / 2, 0))
    assert queried(page) == {"by": "shard", "topic": "herds", "from": str(herd_ms), "to": str(herd_ms + MINUTE_MS)}


def active(page: Page) -> str:
    """What a screen reader says of the cell that the keyboard is on."""
    named = page.get_attribute("#cells", "aria-activedescendant")
    cell = page.locator(f"#cells [role=row] #{named}[role=gridcell]")
    return cell.inner_text()


def test_cells_are_reached_by_tab_and_arrows_and_opened_by_enter(window: ConsoleBrowser, endpoint: str) -> None:
    with Admin(endpoint) as admin:
        pending = list(admin.list_pending("herds"))
    herd_ms = min(row.due_ms for row in pending)
    counts = Counter(row.queue for row in pending)
    path = f"/wheel?topic=herds&by=shard&live=off&from={herd_ms - 10 * MINUTE_MS}&to={herd_ms + 10 * MINUTE_MS}"
    page = window.open(path)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "cells":
            break
    fullest = max(sorted(counts), key=lambda queue: counts[queue])
    assert active(page).startswith(f"herds-{fullest} · "), "the keyboard begins where most is due"
    assert active(page).endswith(f" · {counts[fullest]} messages of 300")
    assert page.locator(".frame").is_visible()
    assert page.inner_text(".tip") == active(page)
    window.check("wheel-keyboard")
    page.keyboard.press("ArrowUp" if fullest else "ArrowDown")
    other = fullest - 1 if fullest else 1
    assert active(page).startswith(f"herds-{other} · ")
    assert active(page).endswith(f" · {counts[other]} messages of 300")
    reached = page.get_attribute("#cells", "aria-activedescendant")
    page.keyboard.press("ArrowRight")
    assert active(page).endswith(" · 0 messages of 0")
    page.keyboard.press("ArrowLeft")
    assert page.get_attribute("#cells", "aria-activedescendant") == reached
    for keys, at in (("Home", f"{other}-0"), ("ArrowLeft", f"{other}-0"), ("End", f"{other}-19"),
                     ("ArrowRight", f"{other}-19"), ("Control+Home", "0-0"), ("ArrowUp", "0-0"),
                     ("Control+End", "3-19"), ("ArrowDown", "3-19")):  # fmt: skip
        page.keyboard.press(keys)
        assert page.get_attribute("#cells", "aria-activedescendant") == f"cell-{at}", keys
    assert page.get_attribute("#cells [role=row]", "aria-rowindex") == "4"
    assert page.get_attribute("#cells [role=gridcell]", "aria-colindex") == "21"
    assert page.get_attribute("#cells", "aria-rowcount") == "4"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") != "cells", "one Tab leaves it"
    assert not page.locator(".frame").is_visible()
    page.keyboard.press("Shift+Tab")
    assert page.get_attribute("#cells", "aria-activedescendant") == "cell-3-19", "and comes back to the same cell"
    for _ in range(3 - other):
        page.keyboard.press("ArrowUp")
    page.keyboard.press("Home")
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert queried(page) == {
        "topic": "herds", "queue": str(other), "from": str(herd_ms), "to": str(herd_ms + MINUTE_MS),
    }  # fmt: skip
    assert f"{min(50, counts[other])} of herds" in window.text()


def test_the_wheel_is_zoomed_from_months_to_a_minute_and_back_live(window: ConsoleBrowser, endpoint: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    herd_ms = (now_ms // HOUR_MS + 3) * HOUR_MS + 7 * MINUTE_MS
    send(endpoint, "months", [now_ms + 39 * DAY_MS] + [herd_ms] * 50)
    page = window.open("/wheel?topic=months&by=shard&span=all")
    months = edges(page)[-1] - edges(page)[0]
    assert months >= 39 * DAY_MS
    window.check("wheel-months")
    # Not by a column: they begin at noon or midnight, UTC, and the herd is in the first or the second, by the hour.
    drag(page, max(edges(page)[0] + 1, herd_ms - 5 * HOUR_MS), herd_ms + 8 * HOUR_MS)
    assert edges(page)[-1] - edges(page)[0] < DAY_MS
    with page.expect_navigation():  # until it is loaded: what its script has not made a grid yet takes no focus
        page.locator("#times-title + .scroll tbody a").first.click()
    page.locator("#cells").focus()
    spans = [edges(page)[-1] - edges(page)[0]]
    while spans[-1] > MINUTE_MS:
        zoomed(page, "+")
        spans.append(edges(page)[-1] - edges(page)[0])
        assert spans[-1] < spans[-2]
    shown = queried(page)
    assert int(shown["to"]) - int(shown["from"]) == MINUTE_MS
    assert page.get_attribute("#live", "hx-get") is not None, "it is live still"
    (before,) = page.evaluate(TOTAL)
    send(endpoint, "months", [edges(page)[0] + n for n in range(100)])
    page.wait_for_function(f"was => ({TOTAL})()[0] === was + 100", arg=before)
    assert f"; {before + 100} of them fall due" in window.text(), "the sentence above is as new as the picture"
    assert page.evaluate("document.activeElement.id") == "cells", "looking again takes the focus away from nothing"
    assert active(page).split(" · ")[2].endswith(f" messages of {before + 100}")
    window.check("wheel-minute")
    zoomed(page, "Shift+ArrowRight")
    assert edges(page)[0] > int(shown["from"])
    zoomed(page, "Shift+ArrowLeft")
    while edges(page)[-1] - edges(page)[0] < months:
        zoomed(page, "-")
    assert sum(page.evaluate(TOTAL)) >= 150
    with page.expect_navigation():
        page.click("text=Live: on")
    assert page.get_attribute("#live", "hx-get") is None


def zoomed(page: Page, keys: str) -> None:
    """The keyboard is on the picture before and after."""
    assert page.evaluate("document.activeElement.id") == "cells", keys
    with page.expect_navigation():
        page.keyboard.press(keys)


def test_the_wheel_is_live(window: ConsoleBrowser, endpoint: str) -> None:
    page = window.open("/wheel?topic=zooms&span=1d")
    send(endpoint, "zooms", [time.time_ns() // 1_000_000 + 3 * HOUR_MS] * 7)
    page.wait_for_function("() => JSON.parse(document.getElementById('picture').textContent).total.includes(7)")


NOTE_WHAT_IS_SAID = """() => {
    const button = document.querySelector('.command button');
    window.said = [];
    new MutationObserver(() => window.said.push(button.textContent)).observe(
        button, {childList: true, characterData: true, subtree: true});
}"""


def test_a_command_is_copied_by_its_button(window: ConsoleBrowser) -> None:
    page = window.open("/wheel?topic=herds&live=off")
    window.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=window.base)
    page.evaluate(NOTE_WHAT_IS_SAID)  # as it is said: the button says so for 1.5 s only
    page.click(".command button")
    page.wait_for_function("() => window.said.includes('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == window.command()
    assert window.command().endswith(" wheel herds --nodes --slot 10m")
    window.note("copied  a page's command to the clipboard")
    window.context.clear_permissions()


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
