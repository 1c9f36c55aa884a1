"""`delayctl adopt` writes an object in two parts, while the operator and masters write it too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from delayctl.targets.errors import TargetRefused
from delayctl.targets.registry import Adoption, LocalRegistryEditor
from delayoperator.control_loop.node_access import OperatorAccess
from delayoperator.control_loop.probe import PatientProber
from delayregistry.model import Condition, ConditionType, ShardObject, ShardSpec, ShardStatus, Version
from delayregistry.sqlite import SqliteRegistry

NAME = "orders-0"
OLDER = ShardSpec(7, "orders", 0, ("n0", "n1"), master="n0", epoch=3, incarnation="one")
OLDER_STATUS = ShardStatus(3, "one", ("n0:7", "n1:7"))
NEWER, NEWER_STATUS = ShardSpec(7, "orders", 0, ("n2", "n1"), epoch=5), ShardStatus(5, "", ("n2:8",))


class DisturbedRegistry(SqliteRegistry):
    """meanwhile: done before each write of a person."""

    meanwhile: Callable[[], object] | None = None

    def write_spec(self, name: str, spec: ShardSpec, version: Version) -> Version:
        self._disturb()
        return super().write_spec(name, spec, version)

    def write_status(self, name: str, status: ShardStatus, version: Version) -> Version:
        self._disturb()
        return super().write_status(name, status, version)

    def _disturb(self) -> None:
        if self.meanwhile is not None:
            self.meanwhile()

    @property
    def shard(self) -> ShardObject:
        found = self.get_shard(NAME)
        assert found is not None
        return found


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[DisturbedRegistry]:
    made = DisturbedRegistry(tmp_path / "registry.db", create=True)
    yield made
    made.close()


def adopt(registry: DisturbedRegistry, shard: ShardObject) -> None:
    editor = LocalRegistryEditor(registry, Path(), PatientProber(OperatorAccess()))
    editor.adopt(Adoption(shard, NEWER, NEWER_STATUS, "the copies know more"))


def older_state(registry: DisturbedRegistry, status: ShardStatus | None) -> ShardObject:
    version = registry.create_shard(OLDER)
    if status is not None:
        registry.write_status(NAME, status, version)
    return registry.shard


@pytest.mark.parametrize("status", [OLDER_STATUS, None])
def test_an_adoption_takes_no_harm_from_conditions_that_the_operator_writes(
    registry: DisturbedRegistry, tmp_path: Path, status: ShardStatus | None
) -> None:
    shard, other, words = older_state(registry, status), SqliteRegistry(tmp_path / "registry.db"), iter("abcd")

    def say() -> None:
        if (word := next(words, None)) is not None:
            said = Condition(ConditionType.BLOCKED, "RegistryBehind", word)
            other.write_conditions(NAME, (said,), registry.shard.version)

    registry.meanwhile = say
    adopt(registry, shard)
    other.close()
    assert (registry.shard.spec, registry.shard.status) == (NEWER, NEWER_STATUS)
    assert next(words, None) is None, "all of them were written"


@pytest.mark.parametrize("status", [OLDER_STATUS, None])
def test_nobody_can_be_chosen_from_an_object_that_is_half_adopted(
    registry: DisturbedRegistry, status: ShardStatus | None
) -> None:
    """Beside the newer epoch, the in-sync set of the older state would name a copy that fell out since."""
    shard = older_state(registry, status)
    seen: list[ShardObject] = []
    registry.meanwhile = lambda: seen.append(registry.shard)
    adopt(registry, shard)
    assert len(seen) == 2
    for between in seen:
        assert between.status in (None, NEWER_STATUS) or between.spec.epoch == OLDER.epoch
        assert between.status != NEWER_STATUS or between.spec.epoch == OLDER.epoch, "it is behind until the end"


def test_an_object_of_another_term_is_not_written_over(registry: DisturbedRegistry) -> None:
    shard = older_state(registry, OLDER_STATUS)
    later = replace(OLDER, epoch=6, master="n1")
    registry.write_spec(NAME, later, shard.version)
    with pytest.raises(TargetRefused, match="orders-0 has changed meanwhile"):
        adopt(registry, shard)
    assert (registry.shard.spec, registry.shard.status) == (later, OLDER_STATUS)
