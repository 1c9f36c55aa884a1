"""Every alert, evaluated by Prometheus' own `promtool` over series as nodes and operator expose them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from delayoperator.cluster.reasons import Reason
from delayoperator.crds.sink import SinkReason

from tests.chart.monitoring import TARGET_LABELS, alerts, exposed
from tests.chart.places import ROOT, Json

PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=ROOT / ".venv" / "bin")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not there: 'make setup' takes it from Debian's package prometheus"
)
STEP_S = 15
LONG = 480  # steps: two hours
RULES = {rule["alert"]: rule for rule in alerts()}

NODE = 'namespace="shop",job="shop/orders",pod="orders-0"'
CLUSTER = 'namespace="shop",cluster="orders"'
ON_NODE = {"namespace": "shop", "job": "shop/orders", "pod": "orders-0"}
OF_CLUSTER = {"namespace": "shop", "cluster": "orders"}

Series = dict[str, str]


def constant(value: float, steps: int = LONG) -> str:
    return f"{value}x{steps}"


def node(name: str, values: str, labels: str = "") -> Series:
    return {f"{name}{{{NODE}{',' if labels else ''}{labels}}}": values}


def operator(name: str, values: str, labels: str = "") -> Series:
    return {f"delay_operator_{name}{{{CLUSTER}{',' if labels else ''}{labels}}}": values}


def condition(kind: str, reason: str, values: str) -> Series:
    return operator("condition", values, f'type="{kind}",reason="{reason}"')


def late(fast: int, slow: int) -> Series:
    """Each step so many messages within 500 ms, and so many within 5 s."""
    counts = {"0.5": fast, "1": fast, "2": fast, "5": fast + slow, "+Inf": fast + slow}
    labels = (f'topic="reminders",le="{bound}"' for bound in counts)
    made = (node("delay_release_lateness_seconds_bucket", f"0+{it}x{LONG}", one)
            for one, it in zip(labels, counts.values(), strict=True))  # fmt: skip
    return {name: values for one in made for name, values in one.items()}


@dataclass(frozen=True)
class Case:
    """begins_s: when its expression first holds in `fires`. labels, says: of the alert. quiet: series for which it
    never fires, by what they are."""

    fires: Series
    labels: Json
    says: str
    quiet: dict[str, Series] = field(default_factory=dict)
    begins_s: int = 0
    page: str | None = None


def pulse(name: str, on: float, off: float, alert: str) -> Series:
    """The trouble, one step too short for the alert's `for`, again and again."""
    steps = _for_s(alert) // STEP_S
    return {name: " ".join([*([f"{on}x{steps - 1}"] * bool(steps)), f"{off}x1"] * 5)}


def gauge(alert: str, name: str, on: float, off: float, says: str, more: Json | None = None, **also: Series) -> Case:
    """Of one node's figure: it is on, or off, or on for too short."""
    extra = ",".join(f'{key}="{value}"' for key, value in (more or {}).items())
    (series,) = node(name, "", extra)
    quiet = {"all is well": {series: constant(off)}, **also}
    if _for_s(alert):
        quiet["for too short"] = pulse(series, on, off, alert)
    return Case({series: constant(on)}, {**ON_NODE, **(more or {})}, says, quiet)


def _for_s(alert: str) -> int:
    found = re.fullmatch(r"(\d+)([smh])", RULES[alert].get("for", "0s"))
    assert found is not None
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


LEADER = 'delay_operator_leader{pod="operator-%d"}'
DISK = "delay_disk_free_bytes", "delay_disk_reserve_bytes"
CERTIFICATE = {"job": "shop/orders", "pod": "orders-0", "use": "server"}
GROUP = {"namespace": "shop", "job": "shop/orders", "topic": "reminders", "group": "mail"}
GROUP_LABELS = 'topic="reminders",group="mail"'


def sink(reason: str) -> str:
    (name,) = operator("sink_ready", "", f'sink="hooks",reason="{reason}"')
    return name


def disk(free: float, reserve: float) -> Series:
    return {**node(DISK[0], constant(free)), **node(DISK[1], constant(reserve))}


CASES = {
    "DelayOperatorAbsent": Case(
        {LEADER % 0: constant(0), LEADER % 1: constant(0)}, {}, "No operator of DelayClusters leads",
        {
            "one of two leads": {LEADER % 0: constant(0), LEADER % 1: constant(1)},
            "another takes over within 45 s": {
                LEADER % 0: f"1x20 0x{LONG}", LEADER % 1: f"0x23 1x{LONG}",
            },
        },
    ),
    "DelayClusterManagedByAnother": Case(
        operator("managed_by_another", constant(1)), OF_CLUSTER, "Two operators look after DelayCluster shop/orders",
        {"nobody else's": operator("rounds_total", f"0+1x{LONG}"),
         "taken over": operator("managed_by_another", f"1x38 stale _x{LONG}")},
    ),
    "DelayClusterNotReady": Case(
        condition("Ready", "ShardsNotServed", constant(0)), {**OF_CLUSTER, "reason": "ShardsNotServed"},
        "DelayCluster shop/orders is not ready: ShardsNotServed",
        {"ready": condition("Ready", "Serving", constant(1)),
         "a new one starts": condition("Ready", "Starting", constant(0)),
         "a failover": condition("Ready", "ShardsNotServed", "0x2 1x20 0x2 1x20"),
         "degraded alone": condition("Degraded", "CopiesOutOfSync", constant(0))},
        page="docs/operations.md#shardsnotserved",
    ),
    "DelayClusterDegraded": Case(
        condition("Degraded", "CopiesOutOfSync", constant(1)), {**OF_CLUSTER, "reason": "CopiesOutOfSync"},
        "DelayCluster shop/orders needs a look: CopiesOutOfSync",
        {"it is not": condition("Degraded", "Healthy", constant(0)),
         "ready alone": condition("Ready", "Serving", constant(1)),
         "a pod's restart": condition("Degraded", "CopiesOutOfSync", "1x18 0x10 1x18 0x10")},
        page="docs/operations.md#copiesoutofsync",
    ),
    "DelayOperatorNotLooking": Case(
        operator("last_look_seconds", f"1+15x{LONG}"), OF_CLUSTER,
        "Nobody watches over the masters of DelayCluster shop/orders",
        {"it looks": operator("last_look_seconds", constant(2)),
         "the API server was away for 50 s": operator("last_look_seconds", "1 16 31 46 1x20 1 16 31 46 1x20")},
        begins_s=STEP_S,
    ),
    "DelayNodeDown": Case(
        {f'up{{{NODE}}}': f"1x4 0x{LONG}", **node("delay_recovery_seconds", f"0.5x4 stale _x{LONG}")},
        ON_NODE, "orders-0 of shop/orders does not answer",
        {"it answers": {f'up{{{NODE}}}': constant(1), **node("delay_recovery_seconds", constant(0.5))},
         "another's pod": {'up{namespace="web",job="web/front",pod="front-0"}': constant(0),
                           **node("delay_recovery_seconds", constant(0.5))},
         "it restarts": {f'up{{{NODE}}}': f"1x4 0x6 1x{LONG}", **node("delay_recovery_seconds", constant(0.5))}},
        begins_s=5 * STEP_S,
    ),
    "DelayCopiesStopped": gauge(
        "DelayCopiesStopped", "delay_shards_stopped", 2, 0, "orders-0 of shop/orders has 2 copies that cannot be used",
    ),
    "DelayOrphanedCopies": gauge(
        "DelayOrphanedCopies", "delay_orphan_copies", 3, 0,
        "orders-0 of shop/orders has 3 copies that belong to no DelayShard",
    ),
    "DelayDeliveryLate": Case(
        late(95, 5), {"namespace": "shop", "job": "shop/orders", "topic": "reminders"},
        "reminders of shop/orders is released more than a second late",
        {"one of 1,000": late(999, 1), "nothing is due": late(0, 0), "all within 500 ms": late(100, 0)},
        begins_s=STEP_S,
    ),
    "DelayGroupLags": Case(
        node("delay_group_oldest_seconds", constant(7_200), GROUP_LABELS), GROUP,
        "Group mail of reminders in shop/orders is 2h 0m 0s behind",
        {"half an hour": node("delay_group_oldest_seconds", constant(1_800), GROUP_LABELS),
         "all is done": node("delay_group_oldest_seconds", constant(0), GROUP_LABELS),
         "done within ten minutes": node("delay_group_oldest_seconds", "3601+15x38 0x40", GROUP_LABELS)},
    ),
    "DelayDiskFull": Case(
        disk(2**29, 2**30), ON_NODE, "orders-0 of shop/orders refuses new messages: its disk is full",
        {"just enough": disk(2**30, 2**30), "free again": {
            **node(DISK[0], f"{2**29}x2 {2**31}x{LONG}"), **node(DISK[1], constant(2**30))}},
    ),
    "DelayDiskFillingUp": Case(
        disk(3 * 2**29, 2**30), ON_NODE, "orders-0 of shop/orders has 1.5GiB of disk left",
        {"twice the reserve": disk(2**31, 2**30), "for too short": {
            **node(DISK[0], f"{2**30}x38 {2**32}x{LONG}"), **node(DISK[1], constant(2**30))}},
    ),
    "DelayDiskSlow": gauge(
        "DelayDiskSlow", "delay_oldest_write_seconds", 90, 10,
        "A write of orders-0 of shop/orders takes 1m 30s already",
    ),
    "DelayClockOff": gauge(
        "DelayClockOff", "delay_clock_disbelieved_seconds", 120, 0,
        "The clock of orders-0 of shop/orders is off by 2m 0s",
    ),
    "DelaySinkNotDelivering": Case(
        {sink("CircuitOpen"): constant(0)}, {**OF_CLUSTER, "sink": "hooks"},
        "DelaySink shop/hooks has not delivered for ten minutes",
        {"it delivers": {sink("Delivering"): constant(1)},
         "it is paused": {sink("Paused"): constant(0)},
         "it fails now and then": {
             sink("CircuitOpen"): "0x30 stale _x10 0x30 stale", sink("Delivering"): f"_x30 1x10 stale _x30 1x{LONG}"}},
    ),
    "DelayDeadLettersFull": gauge(
        "DelayDeadLettersFull", "delay_dead_letters_full", 1, 0,
        "reminders of shop/orders has as many dead letters as a group may have", {"topic": "reminders"},
    ),
    "DelayShardContradictsItself": gauge(
        "DelayShardContradictsItself", "delay_impossible_total", 1, 0,
        "A shard of topic reminders on orders-0 of shop/orders refused what its counts contradict",
        {"topic": "reminders"},
    ),
    "DelaySecurityDocumentBad": gauge(
        "DelaySecurityDocumentBad", "delay_security_document_bad", 1, 0,
        "orders-0 of shop/orders can't follow the security document",
    ),
    "DelayCertificateExpires": Case(
        node("delay_certificate_expiry_seconds", constant(10 * 86_400), 'use="server"'), CERTIFICATE,
        "The server certificate of orders-0 of shop/orders expires in 10d 0h 0m 0s",
        {"in three weeks": node("delay_certificate_expiry_seconds", constant(21 * 86_400), 'use="server"'),
         "renewed within the hour": node(
             "delay_certificate_expiry_seconds", f"{10 * 86_400}x230 {90 * 86_400}x200", 'use="server"')},
    ),
    "DelayCertificateUnusable": Case(
        node("delay_certificate_unusable", constant(1), 'use="server"'), CERTIFICATE,
        "orders-0 of shop/orders can't use the server certificate on its disk",
        {"usable": node("delay_certificate_unusable", constant(0), 'use="server"'),
         "put right": node("delay_certificate_unusable", f"1x38 0x{LONG}", 'use="server"')},
    ),
    "DelayScrubFoundDamage": Case(
        node("delay_scrub_errors_total", f"0x4 1x{LONG}"), ON_NODE,
        "The scrub found damaged files on orders-0 of shop/orders",
        {"it found none": node("delay_scrub_errors_total", constant(0))},
        begins_s=5 * STEP_S,
    ),
}  # fmt: skip


def kept(rule: Json) -> Json:
    """Without the description: what it says twice need not be."""
    annotations = {name: text for name, text in rule["annotations"].items() if name != "description"}
    return {**rule, "annotations": annotations}


def promtool(folder: Path, tests: list[Json]) -> str:
    """What it says that is wrong, "" if nothing is."""
    rules = [kept(rule) for rule in alerts()]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "delaycluster", "rules": rules}]}))
    settings = {"rule_files": ["rules.yaml"], "evaluation_interval": f"{STEP_S}s", "tests": tests}
    (folder / "tests.yaml").write_text(yaml.safe_dump(settings))
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", "tests.yaml"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "" if done.returncode == 0 else done.stdout + done.stderr


def given(name: str, series: Series, expected: list[Json]) -> Json:
    inputs = [{"series": one, "values": values} for one, values in series.items()]
    return {"name": name, "interval": f"{STEP_S}s", "input_series": inputs, "alert_rule_test": expected}


def fired(alert: str) -> Json:
    case, rule = CASES[alert], RULES[alert]
    page = case.page or rule["annotations"]["runbook_url"]
    return {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": {"summary": case.says, "runbook_url": page},
    }


def test_every_alert_is_tried_on_what_it_should_not_fire_for_too() -> None:
    assert CASES.keys() == RULES.keys()
    assert all(case.quiet for case in CASES.values())


@pytest.mark.parametrize("alert", CASES)
def test_the_series_are_ones_that_are_exposed(alert: str) -> None:
    known = {**exposed(), "up": set[str]()}
    case = CASES[alert]
    for series in [name for group in (case.fires, *case.quiet.values()) for name in group]:
        name, _, labels = series.partition("{")
        assert name in known
        assert set(re.findall(r'(\w+)="', labels)) - known[name] <= TARGET_LABELS
        assert {*re.findall(r'reason="(\w+)"', labels)} <= {*map(str, Reason), *map(str, SinkReason)}


@needs_promtool
def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "delaycluster", "rules": alerts()}]}))
    subprocess.run([str(PROMTOOL), "check", "rules", tmp_path / "rules.yaml"], check=True, timeout=60)


@needs_promtool
@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_when_its_time_has_passed_and_not_before(alert: str, tmp_path: Path) -> None:
    case = CASES[alert]
    at_s = case.begins_s + _for_s(alert)
    before = [{"eval_time": f"{at_s - STEP_S}s", "alertname": alert}] if at_s >= STEP_S else []
    at = {"eval_time": f"{at_s}s", "alertname": alert, "exp_alerts": [fired(alert)]}
    assert promtool(tmp_path, [given(alert, case.fires, [*before, at])]) == ""


@needs_promtool
@pytest.mark.parametrize(("alert", "what"), [(name, it) for name, case in CASES.items() for it in case.quiet])
def test_an_alert_does_not_fire_for(alert: str, what: str, tmp_path: Path) -> None:
    never = [{"eval_time": f"{STEP_S * step}s", "alertname": alert} for step in range(LONG)]
    assert promtool(tmp_path, [given(what, CASES[alert].quiet[what], never)]) == ""


@needs_promtool
def test_damage_that_was_found_before_prometheus_looked_is_told_for_a_day(tmp_path: Path) -> None:
    alert, day_s = "DelayScrubFoundDamage", 86_400
    checks: list[Json] = [
        {"eval_time": f"{at_s}s", "alertname": alert, "exp_alerts": [fired(alert)] if at_s < day_s else []}
        for at_s in (0, STEP_S, day_s - STEP_S, day_s + 10 * STEP_S)
    ]
    series = node("delay_scrub_errors_total", constant(4, day_s // STEP_S + 20))
    assert promtool(tmp_path, [given("found long ago", series, checks)]) == ""


@needs_promtool
def test_a_clock_that_was_set_back_is_told_as_one_that_is_ahead(tmp_path: Path) -> None:
    alert = "DelayClockOff"
    checks: list[Json] = [
        {"eval_time": "45s", "alertname": alert},
        {"eval_time": "1m", "alertname": alert, "exp_alerts": [fired(alert)]},
    ]
    assert promtool(tmp_path, [given("behind", node("delay_clock_behind_seconds", constant(120)), checks)]) == ""
    assert promtool(tmp_path, [given("out-voted", node("delay_clock_differs_seconds", constant(120)), checks)]) == ""
    # What is released ahead of its due: a node at work has that all the time.
    quiet: list[Json] = [{"eval_time": "5m", "alertname": alert}]
    assert promtool(tmp_path, [given("at work", node("delay_clock_behind_seconds", constant(0.014)), quiet)]) == ""


@needs_promtool
def test_no_operator_at_all_is_told(tmp_path: Path) -> None:
    """As where the release, or what scrapes it, is gone: there is no series of it."""
    expected = {
        "exp_labels": {"severity": "critical"},
        "exp_annotations": {
            "summary": CASES["DelayOperatorAbsent"].says, "runbook_url": "docs/operations.md#nobody-leads",
        },
    }  # fmt: skip
    checks: list[Json] = [
        {"eval_time": "45s", "alertname": "DelayOperatorAbsent"},
        {"eval_time": "1m", "alertname": "DelayOperatorAbsent", "exp_alerts": [expected]},
    ]
    assert promtool(tmp_path, [given("nothing", node("delay_shards_stopped", constant(0)), checks)]) == ""
