"""The audit log: who did and was refused what, in a bounded number of lines."""

from __future__ import annotations

from typing import Any

from delaynode.auth.audit import BURST, LINES_A_SECOND, MAX_REMEMBERED, REPEAT_SECONDS, AuditLog
from delaynode.auth.identity import Identity, IdentityKind
from delaynode.auth.rights import AccessQuestion, Denial
from delayregistry.security import Operation

SHOP = Identity("token:shop", IdentityKind.TOKEN)


class Written:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.now_s = 0.0
        self.log = AuditLog(lambda event, **fields: self.lines.append({"event": event, **fields}), lambda: self.now_s)


def asked(topic: str = "orders", operation: Operation = Operation.PRODUCE) -> AccessQuestion:
    return AccessQuestion(SHOP, operation, topic, "")


def test_a_line_names_who_what_and_why() -> None:
    written = Written()
    written.log.refused(asked(), Denial.NO_RULE, False)
    written.log.refused(asked("other"), Denial.NO_RULE, True)
    written.log.administered("AcceptClock", asked("", Operation.ADMIN))
    common = {"principal": "token:shop", "operation": "Produce"}
    assert written.lines == [
        {"event": "audit-refused", **common, "resource": "topic 'orders'", "why": "NoRule", "again": 0},
        {"event": "audit-would-refuse", **common, "resource": "topic 'other'", "why": "NoRule", "again": 0},
        {"event": "audit-administered", "method": "AcceptClock", "principal": "token:shop", "operation": "Admin",
         "resource": "the cluster"},
    ]  # fmt: skip


def test_a_refusal_that_comes_again_is_a_line_a_minute_with_how_often() -> None:
    written = Written()
    for _ in range(1_000):
        written.log.refused(asked(), Denial.NO_RULE, False)
    written.now_s += REPEAT_SECONDS
    written.log.refused(asked(), Denial.NO_RULE, False)
    assert [line["again"] for line in written.lines] == [0, 999]


def test_lines_are_bounded_and_what_is_left_out_is_counted() -> None:
    written = Written()
    for number in range(100_000):
        written.now_s += 0.0001
        written.log.refused(asked(f"t{number}"), Denial.NO_RULE, False)
    assert BURST <= len(written.lines) <= BURST + 10 * LINES_A_SECOND + 1
    left_out = sum(line.get("left_out", 0) for line in written.lines)
    assert 99_000 < left_out + len(written.lines) <= 100_000
    assert len(written.log._refusals) <= MAX_REMEMBERED


def test_who_administers_is_bounded_too() -> None:
    written = Written()
    for _ in range(10_000):
        written.log.administered("PurgeCopy", asked("", Operation.ADMIN))
    assert len(written.lines) == BURST


def test_what_is_remembered_is_bounded() -> None:
    written = Written()
    for number in range(MAX_REMEMBERED + 500):
        written.now_s += 1
        written.log.refused(asked(f"t{number}"), Denial.NO_RULE, False)
    assert len(written.log._refusals) == MAX_REMEMBERED


def test_who_is_refused_all_the_time_hides_nothing_that_others_do() -> None:
    written, other = Written(), Identity("token:ops", IdentityKind.TOKEN)
    for number in range(10_000):
        written.log.refused(asked(f"t{number}"), Denial.NO_RULE, False)
        written.log.administered("PutSchedule", asked())
    written.log.administered("PurgeCopy", AccessQuestion(other, Operation.ADMIN, "", ""))
    assert written.lines[-1]["principal"] == "token:ops"
    assert "left_out" not in written.lines[-1]
    for number in range(2 * MAX_REMEMBERED):
        one = Identity(f"token:{number}", IdentityKind.TOKEN)
        written.log.administered("PutSchedule", AccessQuestion(one, Operation.PRODUCE, "orders", ""))
    assert len(written.log._allowances) <= MAX_REMEMBERED
