"""Settings from what people wrote: a DelayCluster's `rebalance`, and a DelayRebalance's spec, which goes before it.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delayapi.durations import parse_duration_ms
from delayoperator.crds.rebalance import DelayRebalanceSpec, Mode
from delayoperator.crds.rebalancing import Rebalancing
from pydantic import ValidationError

from delayrebalance.model import RebalanceError, SearchSettings


def settings_of(cluster: Mapping[str, Any], rebalance: Mapping[str, Any] | None) -> SearchSettings:
    """The settings in Kubernetes objects. Raises RebalanceError."""
    written = (cluster.get("spec") or {}).get("rebalance") or {}
    asked = (rebalance or {}).get("spec")
    try:
        general = Rebalancing.model_validate(written)
        own = None if asked is None else DelayRebalanceSpec.model_validate(asked)
        defaults = SearchSettings()
        return SearchSettings(
            horizon_ms=parse_duration_ms(general.horizon),
            slot_ms=parse_duration_ms(general.slot),
            threshold=general.threshold if own is None or own.threshold is None else own.threshold,
            max_moves=general.max_moves,
            bytes_per_second=(own and own.throttle_bytes_per_second) or defaults.bytes_per_second,
            onto=frozenset(own.nodes or ()) if own is not None and own.mode is Mode.ADD_NODES else frozenset(),
            away_from=frozenset(own.nodes or ()) if own is not None and own.mode is Mode.REMOVE_NODES else frozenset(),
            excluded_topics=frozenset(general.excluded_topics or ())
            | frozenset((own.excluded_topics if own is not None else None) or ()),
        )
    except (ValidationError, ValueError) as error:
        raise RebalanceError(f"the spec of a rebalance can't be read: {error}") from error
