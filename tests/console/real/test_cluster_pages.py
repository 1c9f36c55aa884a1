"""Every page but the wheel's in a browser, and every action, on real nodes with two copies of each shard."""

from __future__ import annotations

import getpass
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from delayclient.admin.schedules import Schedule
from delayclient.sync import Admin, Consumer, Producer
from delayconsole.app import PAGE_S
from delayctl.targets.registry import registry_editor
from delaylocal import LocalCluster
from delaylocal.rebalance_file import RebalanceFile
from delayregistry.model import TopicSpec
from playwright.sync_api import expect

from tests.console.support.browser import ConsoleBrowser, chromium, needs_browser, until
from tests.console.support.console_process import running_console
from tests.local.rebalanceworld import kept, plan_of

pytestmark = needs_browser()
EVIL = '<img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    topics = [TopicSpec(name, 2) for name in ("lags", "dead", "again", "placed", "planned")]
    data = tmp_path_factory.mktemp("pair")
    with LocalCluster(data, nodes=3, topics=topics, port=0, replicas=2) as made:
        made.wait_ready()
        yield made


@pytest.fixture(scope="module")
def seen(pair: LocalCluster, pictures: Path) -> Iterator[ConsoleBrowser]:
    options = ("--allow-changes", "--data", str(pair.data))
    with running_console(pair.endpoints[0], *options) as link, chromium() as browser:
        made = ConsoleBrowser(browser, link, pictures)
        yield made
        made.close()


def sent(endpoint: str, topic: str, count: int) -> None:
    with Producer(endpoint) as producer:
        for number in range(count):
            body = bytes(range(256)) if number % 2 else f"{EVIL} {number}"
            producer.send(topic, body, delay=0, key=f"{EVIL}{number}")


def test_groups_are_shown_by_lag_and_one_is_deleted(seen: ConsoleBrowser, pair: LocalCluster) -> None:
    endpoint = pair.endpoints[0]
    sent(endpoint, "lags", 30)
    with Consumer(endpoint, "lags", "billing") as consumer:
        for _ in range(10):
            consumer.ack(consumer.receive())

    def row() -> str:
        return seen.open("/groups?topic=lags").locator("tbody tr").first.inner_text()

    until(lambda: row().split("\t")[2] == "20", "the lag is what was not acknowledged")
    seen.check("groups")
    seen.page.click("text=billing")
    assert "20 released and not done" in seen.text()
    seen.check("group")
    seen.page.click("text=Delete the group")
    done = seen.confirm("Delete the group billing of lags", "groups delete lags --group billing")
    assert "is deleted on" in done
    with Admin(endpoint) as admin:
        assert admin.groups("lags") == []


def test_dead_letters_are_looked_at_redriven_and_dropped(seen: ConsoleBrowser, pair: LocalCluster) -> None:
    endpoint = pair.endpoints[0]
    sent(endpoint, "dead", 8)
    with Consumer(endpoint, "dead", "mail") as consumer:
        for number in range(8):
            consumer.nack(consumer.receive(), dead=True, reason=f"{EVIL} status 50{number}")

    def dead() -> int:
        with Admin(endpoint) as admin:
            return sum(it.dead for it in admin.groups("dead", "mail"))

    until(lambda: dead() == 8, "all are dead letters")
    page = seen.open("/dead-letters")
    assert "mail" in seen.text()
    seen.check("dead-letters")
    page.click("main tbody a")
    expect(page.locator("tbody tr")).to_have_count(8)
    assert f"{EVIL} 0" in page.inner_text("main"), "a body is text"
    for number in range(8):
        assert f"{EVIL} status 50{number}" in seen.text(), "why each was given up"
    assert "00 01 02 03" in seen.text(), "what is no text is in hexadecimal"
    seen.check("dead-letters-of")
    page.locator("tbody input").nth(0).check()
    page.locator("tbody input").nth(7).check()
    page.click("text=Redrive those marked")
    seen.check("dead-letters-question")
    done = seen.confirm("Put 2 dead letters of the group mail in dead back to work?", "dlq redrive dead --group mail")
    assert "2 dead letters of the group mail in dead were redriven" in done
    with Consumer(endpoint, "dead", "mail") as consumer:
        for _ in range(2):
            consumer.ack(consumer.receive())
    assert dead() == 6
    page = seen.open("/dead-letters/group?topic=dead&group=mail")
    page.click("text=Drop all 6")
    assert "dropped" in seen.confirm("Give up all 6 dead letters of the group mail in dead for ever?", "dlq drop dead")
    assert dead() == 0
    seen.open("/dead-letters/group?topic=dead&group=mail")
    assert "There are no dead letters." in seen.text()


def test_what_has_changed_since_the_question_is_asked_again(seen: ConsoleBrowser, pair: LocalCluster) -> None:
    endpoint = pair.endpoints[0]
    sent(endpoint, "dead", 4)
    with Consumer(endpoint, "dead", "twice") as consumer:
        for number in range(4):
            consumer.nack(consumer.receive(), dead=True)
            if number == 1:
                until(lambda: _dead(endpoint, "twice") == 2, "two are dead letters")
                seen.open("/dead-letters/group?topic=dead&group=twice").click("text=Redrive all 2")
    until(lambda: _dead(endpoint, "twice") == 4, "four are dead letters")
    asked = seen.confirm("Put all 2 dead letters")
    assert "It was 2 when you were asked; now it is 4." in asked
    assert _dead(endpoint, "twice") == 4


def _dead(endpoint: str, group: str) -> int:
    with Admin(endpoint) as admin:
        return sum(it.dead for it in admin.groups("dead", group))


def test_schedules_are_paused_resumed_triggered_backfilled_and_deleted(
    seen: ConsoleBrowser, pair: LocalCluster
) -> None:
    with Admin(pair.endpoints[0]) as admin:
        for id_ in ("report", EVIL):
            admin.schedules.put(Schedule("again", id_, EVIL, cron=["0 9 * * 1-5"], zone="Europe/Berlin"))
        page = seen.open("/schedules?topic=again")
        assert page.locator("tbody tr").count() == 2
        seen.check("schedules")
        page.click("text=report")
        expect(page.locator("ol time"), "the next ten").to_have_count(10)
        seen.check("schedule")
        one = "/schedules/one?" + urlencode({"topic": "again", "id": "report"})
        page.fill("input[name=note]", "holidays")
        page.click("main button:text-is('Pause')")
        assert "paused" in seen.confirm("Pause the schedule report of again?", "schedules pause again report --note")
        assert (admin.schedules.get("again", "report").paused, admin.schedules.get("again", "report").note) == (
            True,
            "holidays",
        )
        seen.open(one)
        assert "none of these comes before it is resumed" in seen.text()
        page.click("main button:text-is('Resume')")
        seen.confirm("Resume the schedule report", "schedules resume again report")
        assert not admin.schedules.get("again", "report").paused
        seen.open(one)
        page.click("main button:text-is('Trigger')")
        assert "has fired" in seen.confirm("Fire the schedule report of again once, now?")
        seen.open(one)
        page.fill("input[name=from]", "2026-11-16T00:00:00Z")
        page.fill("input[name=to]", "2026-11-21T00:00:00Z")
        page.click("main button:text-is('Backfill')")
        assert "5 times of report were fired" in seen.confirm("Fire the times of report", "--from 2026-11-16")
        assert admin.schedules.get("again", "report").fired == 6
        seen.open("/schedules/one?" + urlencode({"topic": "again", "id": EVIL}))
        seen.check("schedule-evil")
        page.click("main button:text-is('Delete')")
        assert "is deleted" in seen.confirm("Delete the schedule")
        assert [it.schedule.id for it in admin.schedules.each("again")] == ["report"]


def test_a_shard_changes_its_master_and_a_copy_moves(seen: ConsoleBrowser, pair: LocalCluster) -> None:
    page = seen.open("/shards?topic=placed")
    assert page.locator("tbody tr").count() == 2
    seen.check("shards")
    with registry_editor(pair.data) as at:
        until(lambda: len(at.in_sync(at.shard("placed-0"))) == 2, "both copies are in sync")
        before = at.shard("placed-0").spec
        assert before.master is not None
        other = next(it for it in before.replicas if it != before.master)
        seen.open("/shards/one?shard=placed-0")
        seen.check("shard")
        page.click("text=Switch over")
        done = seen.confirm(f"Let {other} lead placed-0 in place of {before.master}?", "shards switchover placed-0")
        assert f"{other} has taken placed-0 over from {before.master}" in done
        assert at.shard("placed-0").spec.master == other
        free = next(it for it in at.cluster().node_ids if it not in before.replicas)
        page = seen.open("/shards/one?shard=placed-0")
        page.select_option("select[name=from]", before.master)
        page.select_option("form:has(select[name=from]) select[name=to]", free)
        page.click("main button:text-is('Move')")
        seen.confirm(f"Move the copy of placed-0 on {before.master} to {free}?", f"--from {before.master} --to {free}")
        until(lambda: set(at.shard("placed-0").spec.replicas) == {other, free}, "the copy has moved")


def test_a_node_is_emptied_and_used_again(seen: ConsoleBrowser, pair: LocalCluster) -> None:
    page = seen.open("/nodes")
    assert page.locator("tbody tr").count() == 3
    seen.check("nodes")
    page.click("[aria-label='Drain n2']")
    seen.check("drain-question")
    seen.confirm("Empty n2?", f"nodes drain n2 --data {pair.data}")
    with registry_editor(pair.data) as at:
        assert at.cluster().drained == ("n2",)
        until(lambda: not any("n2" in it.spec.replicas for it in at.shards()), "n2 is empty")
        seen.open("/nodes").click("[aria-label='Drain n1']")
        assert "2 copies are wanted of each shard, and 1 other nodes would be left" in seen.text()
        seen.errors = [it for it in seen.errors if "409" not in it]
        seen.open("/nodes").click("[aria-label='Use n2 again']")
        seen.confirm("Use n2 again?", "nodes drain n2 --undo")
        assert at.cluster().drained == ()


def test_rebalance_sinks_and_audit_say_what_there_is(seen: ConsoleBrowser) -> None:
    seen.open("/rebalance")
    assert "Nothing is proposed." in seen.text()
    assert "Load of the coming day, as it is" in seen.text()
    seen.check("rebalance")
    seen.open("/sinks")
    assert "This cluster is not in Kubernetes" in seen.text()
    seen.check("sinks")
    seen.open("/audit?event=audit-refused&text=nobody")
    assert "The logs have no such event." in seen.text()
    seen.check("audit")


def test_a_plan_is_seen_before_and_after_approved_and_carried_out(seen: ConsoleBrowser, pair: LocalCluster) -> None:
    with Producer(pair.endpoints[0]) as producer:
        for number in range(60):
            producer.send("planned", b"x", delay=f"{1 + number // 10}h", key=str(number))
    with registry_editor(pair.data) as at:
        until(lambda: len(at.shard("planned-0").spec.replicas) == 2, "the moves of other tests are over")
        spec = at.shard("planned-0").spec
        assert spec.master is not None
        free = next(it for it in at.cluster().node_ids if it not in spec.replicas)
        plan = plan_of([("planned-0", spec.master, free, spec.replicas)])
        RebalanceFile(pair.data).edit(lambda before: kept(plan))

        def state() -> str:
            seen.open("/rebalance")
            return seen.page.inner_text(".lead")

        until(lambda: state().startswith("ProposalReady"), "the plan is found good")
        assert "as the plan would leave it" in seen.text()
        assert seen.page.locator("svg.strip").count() == 6, "each node, now and then"
        seen.check("rebalance-plan")
        seen.page.click("main button:text-is('Approve')")
        seen.confirm(f"Carry out plan {plan.hash}: 1 move?", f"rebalance --approve {plan.hash}")
        moved = {free, *spec.replicas} - {spec.master}
        until(lambda: set(at.shard("planned-0").spec.replicas) == moved, "the plan is carried out")
        until(lambda: state().startswith("Ready"), "and over")
        seen.check("rebalance-done")


def test_what_was_done_here_is_in_the_audit_log(seen: ConsoleBrowser, pair: LocalCluster) -> None:
    with Admin(pair.endpoints[0]) as admin:
        admin.schedules.put(Schedule("again", EVIL + "audited", "x", cron=["0 9 * * *"]))
    page = seen.open("/schedules/one?" + urlencode({"topic": "again", "id": EVIL + "audited"}))
    page.click("main button:text-is('Trigger')")
    seen.confirm("once, now?")
    page = seen.open("/audit?event=audit-console&text=audited")
    (row,) = [it.inner_text() for it in page.locator("tbody tr").all()]
    assert "done by the console" in row
    assert "schedules trigger again" in row
    assert "has fired" in row
    assert getpass.getuser() in row
    seen.check("audit-rows")


def test_a_node_that_hangs_takes_no_page_away(seen: ConsoleBrowser, pair: LocalCluster) -> None:
    """Each page answers, with what the others know, or says that it has no answer: all of them at once."""
    pages = ["/wheel", "/pending?topic=lags", "/groups", "/dead-letters", "/schedules?topic=again", "/sinks", "/nodes",
             "/shards", "/rebalance", "/audit"]  # fmt: skip
    cookie = "; ".join(f"{it['name']}={it['value']}" for it in seen.context.cookies())

    def asked(path: str) -> tuple[int, str]:
        with urlopen(Request(seen.base + path, headers={"Cookie": cookie}), timeout=60) as answer:
            return answer.status, answer.read().decode()

    os.kill(pair.pids["n1"], signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(len(pages)) as pool:
            answers = dict(zip(pages, pool.map(asked, pages), strict=True))
        assert {status for status, _ in answers.values()} == {200}
        assert "no answer" in answers["/nodes"][1]
        seen.open("/nodes")
        seen.check("nodes-one-hangs")
    finally:
        os.kill(pair.pids["n1"], signal.SIGCONT)
    pair.wait_ready()


def _led_by_others(pair: LocalCluster) -> str:
    """A node, not the one that the console asks, which is the master of a shard: others take over from who hangs."""
    pair.wait_ready()
    shards = [it.spec for it in pair.registry.list_shards()]
    led = {it.master for it in shards} & {"n1", "n2"}
    if not led:
        shard, node = next((it, node) for it in shards for node in it.replicas if node != it.master)
        with registry_editor(pair.data) as at:
            until(lambda: node in at.in_sync(at.shard(shard.name)), f"{node} has caught up")
            at.switchover(shard.name, node)
        until(lambda: any(it.spec.master == node for it in pair.registry.list_shards()), f"{node} is a master")
        led = {node}
    return min(led)


def test_a_node_that_hangs_while_the_page_is_made_is_named_and_the_others_are_shown(
    seen: ConsoleBrowser, pair: LocalCluster
) -> None:
    """It is stopped as late in the load as it still matters: tried from the end of a load to its begin.

    On a slow machine others may be late too, and the page says so: the next part is tried.
    """
    path = "/wheel?by=shard&live=off"
    began_s = time.monotonic()
    seen.open(path)
    usual_s = time.monotonic() - began_s
    for part in (0.8, 0.6, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0):
        node = _led_by_others(pair)
        stopping = Timer(part * usual_s, os.kill, (pair.pids[node], signal.SIGSTOP))
        began_s = time.monotonic()
        stopping.start()
        try:
            page = seen.open(path)
            took_s, text = time.monotonic() - began_s, seen.text()
            stopping.join()
            late = set(re.findall(r"(n\d) has not answered within 3 s", text))
            if late == {node}:
                rows = page.locator("#rows-title + .scroll tbody tr").all_inner_texts()
                seen.check("wheel-a-node-hangs-midway")
        finally:
            stopping.join()
            os.kill(pair.pids[node], signal.SIGCONT)
        assert took_s < PAGE_S
        if late == {node}:
            break
    assert late == {node}
    assert 0 < len(rows) < len(pair.registry.list_shards()), "all but what is on it"
    assert node not in {row.split("\t")[1] for row in rows}
    pair.wait_ready()


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/groups?topic=none", 400, "there is no topic 'none' that you may see"),
        (f"/groups/one?{urlencode({'topic': 'lags', 'group': EVIL})}", 404, EVIL),
        ("/dead-letters/group?topic=dead&group=none", 404, "has no group 'none'"),
        ("/dead-letters/group?topic=dead&group=mail&after=1", 400, "is not the place of a dead letter, QUEUE:OFFSET"),
        (f"/schedules/one?{urlencode({'topic': 'again', 'id': EVIL * 2})}", 404, EVIL),
        ("/shards/one?shard=none-0", 404, "there is no shard 'none-0'"),
        ("/shards?first=-1", 400, "expected a number from 0"),
        ("/audit?event=none", 400, "expected one of"),
    ],
)
def test_what_there_is_not_is_said(seen: ConsoleBrowser, path: str, status: int, says: str) -> None:
    seen.open(path, status)
    assert says in seen.text()
    assert seen.errors == []
