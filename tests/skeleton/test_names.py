"""scripts/names.py: what the check of names finds."""

from pathlib import Path

import pytest

from scripts import names


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(names, "ROOT", tmp_path)
    monkeypatch.setattr(names, "RETIRED", {"beacon": "heartbeat"})
    monkeypatch.setattr(names, "FROZEN", frozenset({"beacon_age_ms"}))
    for room in names.ROOMS:
        (tmp_path / room).mkdir()
    return tmp_path


def test_a_second_class_of_one_name_is_found_in_another_room_and_nested(house: Path) -> None:
    (house / "node/a.py").write_text("class Role: ...\n")
    (house / "operator/b.py").write_text("class Other:\n    class Role: ...\n")
    assert list(names.problems()) == ["class Role is defined 2 times: node/a.py:1, operator/b.py:2"]


def test_a_retired_word_is_found_in_any_part_of_an_identifier_but_not_in_frozen_ones(house: Path) -> None:
    (house / "node/a.py").write_text("def _send_beacons(BeaconThread, beacon_age_ms, abeacon): ...\n")
    assert [line.split(": ")[1] for line in names.problems()] == ["_send_beacons", "BeaconThread"]


def test_the_compiled_edge_keeps_to_the_same_names(house: Path) -> None:
    (house / "edge/src").mkdir(parents=True)
    (house / "node/a.py").write_text("class Role: ...\n")
    (house / "edge/delayedge.pyi").write_text("class Role: ...\n")
    (house / "edge/src/lib.rs").write_text('// beacon\nfn send_beacon() { beacon_age_ms("a \\" beacon"); } // beacon\n')
    assert list(names.problems()) == [
        "edge/src/lib.rs:2: send_beacon: beacon is retired, write heartbeat",
        "class Role is defined 2 times: node/a.py:1, edge/delayedge.pyi:1",
    ]
