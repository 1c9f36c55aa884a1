"""Quantities are compared as numbers, and what the API server would drop is never sent."""

from __future__ import annotations

from decimal import Decimal

import pytest
from delayoperator.resources import whole_bytes
from delayoperator.resources.normal import BadQuantity, normal, quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", "1"), ("1000m", "1"), ("0.5", "0.5"), (".5", "0.5"), ("1k", "1000"), ("1e3", "1000"), ("1E3", "1000"),
        ("1Ki", "1024"), ("1.5Gi", "1610612736"), ("1E", "1000000000000000000"), ("5n", "0.000000005"),
        ("2Ei", str(2 << 60)),
        (2, "2"), (0.5, "0.5"), ("-1", "-1"),
    ],
)  # fmt: skip
def test_a_quantity_is_a_number(text: str | int | float, number: str) -> None:
    assert quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1GB", "one", "1e", "1.5.2", "0x10", "NaN", "Infinity"])
def test_what_is_no_quantity_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadQuantity, match="is no quantity such as"):
        quantity(text)


def test_bytes_are_rounded_up_as_kubernetes_does() -> None:
    assert (whole_bytes("1Gi"), whole_bytes("100m"), whole_bytes("1.5Ki")) == (1 << 30, 1, 1536)


def test_nulls_and_empty_lists_and_texts_are_dropped() -> None:
    assert normal({"a": None, "b": [], "c": "", "d": 0, "e": False, "f": {"g": None}}) == {"d": 0, "e": False, "f": {}}


def test_an_empty_text_that_says_something_is_kept() -> None:
    wanted = {"nodeSelector": {"node-role.kubernetes.io/storage": ""}, "storageClassName": "", "apiGroups": [""]}
    assert normal(wanted) == wanted


def test_an_empty_map_is_dropped_and_an_empty_object_is_kept() -> None:
    assert normal({"nodeSelector": {}, "emptyDir": {}, "namespaceSelector": {}, "matchLabels": {}}) == {
        "emptyDir": {},
        "namespaceSelector": {},
    }
