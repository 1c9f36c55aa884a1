"""Every event that our programs log has a level: docs/operations.md#logs."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from delayapi.events import EventLog, LibraryRecords
from delayapi.log_levels import LEVELS, LogLevel, level_of
from delaynode import config
from delaynode.main import Logger
from grpc._cython import cygrpc

from scripts.names import ROOT, sources

SAYS_ITSELF = {"action", "log", "node-died", "rebalance", "round-incomplete", "said"}
PRINTED = {"finding", "mended", "cleared", "summary"}  # lines of `delaynode verify`, for people
TELLS = re.compile(r"_?log(_event|_once|_failure)?|NodeCondition|_say|_failed|_pause")
NAME = re.compile(r"[a-z]+(-[a-z]+)*")


def constants(node: ast.expr | None) -> Iterator[str]:
    """The texts that this expression may be."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from constants(body)
            yield from constants(orelse)
        case ast.BoolOp(values=values):
            for value in values:
                yield from constants(value)


def logged(path: Path) -> Iterator[str]:
    """The events that this module logs, as far as they are written out."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[first, *_]) if TELLS.fullmatch(name):
                yield from constants(first)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "event":
                        yield from constants(value)
            case ast.Assign(value=ast.Constant(value=str(text))) if path.name == "connection.py":
                yield text


def all_logged() -> set[str]:
    return {it for path in sources() for it in logged(path) if NAME.fullmatch(it) and "_" not in it}


def test_every_event_has_a_level_and_every_level_an_event() -> None:
    named = all_logged() - PRINTED
    assert len(named) > 100
    assert named - LEVELS.keys() - SAYS_ITSELF == set(), "name them in node/delayapi/log_levels.py"
    assert LEVELS.keys() - named == set(), "nothing logs these any more"


def test_events_that_say_their_level_themselves_are_not_in_the_table() -> None:
    assert SAYS_ITSELF & LEVELS.keys() == set()
    source = "\n".join(path.read_text() for path in sources())
    assert all(f'"event": "{name}", "level": ' in source for name in ("log", "node-died", "rebalance"))


def test_the_end_of_a_nodes_condition_is_no_fault() -> None:
    assert (level_of({"event": "disk-slow"}), level_of({"event": "disk-slow-over"})) == ("warning", "info")


def lines(log: EventLog, out: io.StringIO) -> list[dict[str, object]]:
    for event in ("scrubbed", "term-started", "lease-not-renewed", "shard-damaged"):
        log({"event": event})
    log({"event": "said", "level": LogLevel.WARNING})
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    out.truncate(0)
    out.seek(0)
    return found


def test_a_log_leaves_out_what_is_below_its_level_and_follows_a_change() -> None:
    out = io.StringIO()
    log = EventLog(out)
    assert [it["level"] for it in lines(log, out)] == ["info", "warning", "error", "warning"]
    for level, count in ((LogLevel.DEBUG, 5), (LogLevel.WARNING, 3), (LogLevel.ERROR, 1)):
        log.level = level
        assert len(lines(log, out)) == count


def test_records_of_libraries_are_events_with_the_same_four_levels() -> None:
    out = io.StringIO()
    handler = LibraryRecords(EventLog(out))
    for level in (logging.INFO, logging.CRITICAL):
        handler.emit(logging.LogRecord("kopf", level, "", 0, "all is %s", ("well",), None))
    # gRPC says so of each call that is under way when a node stops, or whose client has gone.
    for end in (asyncio.CancelledError(), cygrpc.ExecuteBatchError()):
        handler.emit(logging.LogRecord("grpc", logging.ERROR, "", 0, "x", (), (type(end), end, None)))
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(it["level"], it["logger"], it["message"]) for it in found] == [
        ("info", "kopf", "all is well"),
        ("error", "kopf", "all is well"),
    ]


def test_no_record_of_a_library_ends_what_the_library_was_doing() -> None:
    out = io.StringIO()
    handler = LibraryRecords(EventLog(out))
    handler.handle(logging.LogRecord("other", 25, "", 0, "%s of %s", ("one",), None))  # a level of its own, 25
    (found,) = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (found["level"], found["message"]) == ("info", "%s of %s ('one',)")


def test_a_node_takes_its_level_from_the_spec_then_the_option_then_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = ["--node-id", "n0", "--data", "d", "--registry", "sqlite:r"]
    assert config.parse(needed).log_level is LogLevel.INFO
    monkeypatch.setenv("DELAYCLUSTER_LOG_LEVEL", "error")
    assert config.parse(needed).log_level is LogLevel.ERROR
    level = config.parse([*needed, "--log-level", "warning"]).log_level
    log = Logger("n0", level)
    for said in (LogLevel.DEBUG, None):
        log.set_level(said)
        log("scrubbed")
        log("peer-silent")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == [
        "scrubbed",
        "peer-silent",
        "peer-silent",
    ]
    monkeypatch.setenv("DELAYCLUSTER_LOG_LEVEL", "verbose")
    with pytest.raises(SystemExit):
        config.parse(needed)
    assert "verbose" in capsys.readouterr().err


def test_the_page_names_every_level_and_where_it_is_set() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    section = page[page.index("\n## Logs\n") :].split("\n## ")[1]
    assert all(f"| `{level}` |" in section for level in LogLevel)
    assert all(word in section for word in ("spec.logLevel", "logLevel", "--log-level", "DELAYCLUSTER_LOG_LEVEL"))


def test_a_level_that_there_is_not_is_refused_with_those_that_there_are_and_where_it_may_stand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DELAYCLUSTER_LOG_LEVEL", "loud")
    with pytest.raises(SystemExit):
        config.parse(["--node-id", "n0", "--data", "d", "--registry", "sqlite:r"])
    said = capsys.readouterr().err
    assert "'loud' (here or in $DELAYCLUSTER_LOG_LEVEL) is not one of debug, info, warning, error" in said
