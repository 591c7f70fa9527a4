"""Options of stacks, and the errors for invalid ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError, PluginError
from sparring.storage.open import open_storage
from sparring_tiered import TieredOptions, TierOptions

TABLE = TableConfig("films", 8)


def test_a_name_is_short_for_a_tier_of_that_backend() -> None:
    with open_storage("tiered", TABLE, tiers=["memory", "memory"]) as stack:
        assert stack.capacity is None
        assert [each.backend for each in stack.tier_counters()] == ["memory", "memory"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512 MiB", 512 << 20),
        ("1.5 GB", 1_500_000_000),
        ("2kib", 2048),
        ("77", 77),
        (77, 77),
        ("8 B", 8),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_budgets_are_numbers_with_units(text: Any, expected: int) -> None:
    assert TierOptions(backend="memory", budget_bytes=text).budget_bytes == expected


@pytest.mark.parametrize("text", ["much", "12 parsecs", "-1 MB", "", "0", "1" * 400, 1.5, True])
def test_invalid_budgets_are_rejected(text: Any) -> None:
    with pytest.raises(ValueError, match="budget_bytes"):
        TierOptions(backend="memory", budget_bytes=text)


def test_a_budget_becomes_a_capacity_with_a_policy() -> None:
    tiers = [{"backend": "memory", "budget_bytes": 10 * (TABLE.row_bytes + 8)}, "memory"]
    with open_storage("tiered", TABLE, tiers=tiers) as stack:
        first: Any = stack.tiers[0]  # type: ignore[attr-defined]
        assert first.capacity == 10
        assert first.capabilities.evicts


def test_a_stack_may_be_a_tier() -> None:
    inner = {"backend": "tiered", "options": {"tiers": ["memory", "memory"]}}
    with open_storage("tiered", TABLE, tiers=["memory", inner]) as stack:
        stack.upsert([1], np.ones((1, 8), np.float32))
        stack.flush()
        assert stack.size == 1


def test_open_rejects_the_same_options_as_a_config_check() -> None:
    with pytest.raises(PluginError, match="memry"):
        open_storage("tiered", TABLE, tiers=["memory", "memry"])
    with pytest.raises(InvalidArgumentError, match="policy"):
        open_storage(
            "tiered",
            TABLE,
            tiers=[{"backend": "memory", "options": {"capacity": 4, "policy": "none"}}, "memory"],
        )
    with pytest.raises(InvalidArgumentError, match="tiers"):
        open_storage("tiered", TABLE, tiers=["memory"])


def test_defaults_equal_the_reference() -> None:
    options = TieredOptions.model_validate({"tiers": ["memory", "memory"]})
    assert (options.write, options.promote) == ("back", "always")
    assert (options.false_positive_rate, options.buffer_bytes) == (0.01, 64 << 20)


def test_an_infinite_deadline_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="deadline_seconds"):
        open_storage("tiered", TABLE, tiers=["memory", "memory"], deadline_seconds=float("inf"))


def test_an_error_of_a_tier_names_its_table_and_place() -> None:
    tiers = [
        {"backend": "memory", "budget_bytes": "1 MB", "options": {"capacity": 5}},
        "memory",
    ]
    with pytest.raises(
        InvalidArgumentError, match=r"table 'films', tiers\.0 \(memory, budget_bytes 1000000\)"
    ):
        open_storage("tiered", TABLE, tiers=tiers)


def test_a_tier_that_keeps_rows_from_lower_tiers_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bounded = {"backend": "memory", "options": {"capacity": 5, "policy": "lru"}}
    for options in (
        {"tiers": [bounded, "memory"]},
        {"tiers": ["memory", "memory"], "write": "through"},
    ):
        open_storage("tiered", TABLE, **options).close()
    assert not caplog.messages
    open_storage("tiered", TABLE, tiers=[bounded, "memory", "memory"]).close()
    (line,) = caplog.messages
    assert "'films': tiers.1 (memory) has no bound" in line
