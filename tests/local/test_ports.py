"""Free ports are chosen long before they are bound, and are bound again at each restart of a node."""

from __future__ import annotations

import pytest
from delaylocal import ports


def test_what_one_process_chooses_twice_never_collides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_given", set())
    chosen = [port for _ in range(60) for port in ports.choose(0, 5, secure=True).all]
    assert len(set(chosen)) == len(chosen) == 60 * 5 * 6
