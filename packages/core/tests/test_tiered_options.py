"""What users may set on a stack, and how they are told what is wrong with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring import TableConfig, open_storage
from sparring.config import parse_config
from sparring.errors import ConfigError, InvalidArgumentError, PluginError
from sparring.plugins import make_plugin_manager
from sparring.storage.tiered import TieredOptions, TierOptions

TABLE = TableConfig("films", 8)

CONFIG = """\
data: {{kind: movielens, path: ratings.csv}}
model: {{kind: matrix_factorization, dim: 4}}
storage:
  backend: tiered
  options:
    tiers:
{tiers}
"""


def refusal(tiers: str, more: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(
            CONFIG.format(tiers=tiers) + more,
            source="run.yaml",
            plugin_manager=make_plugin_manager(),
        )
    return str(caught.value)


def test_a_name_stands_for_a_tier_of_that_backend() -> None:
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
def test_budgets_that_are_no_bytes_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="budget_bytes"):
        TierOptions(backend="memory", budget_bytes=text)


def test_a_budget_becomes_a_capacity_with_a_policy() -> None:
    tiers = [{"backend": "memory", "budget_bytes": 10 * (TABLE.row_bytes + 8)}, "memory"]
    with open_storage("tiered", TABLE, tiers=tiers) as stack:
        first: Any = stack.tiers[0]  # type: ignore[attr-defined]
        assert first.capacity == 10
        assert first.capabilities.evicts


def test_errors_of_tiers_have_their_places() -> None:
    message = refusal(
        """\
      - {backend: memory, budget_bytes: 12 parsecs}
      - {backend: memory, options: {capacitty: 5}}
"""
    )
    assert "run.yaml:7:41: storage.options.tiers.0.budget_bytes" in message
    assert "512 MiB" in message
    assert "at least 2" not in message, "one wrong tier is not too few of them"
    message = refusal(
        """\
      - {backend: memory, options: {capacitty: 5}}
      - memry
      - {backend: memori}
"""
    )
    assert "run.yaml:7:37: unknown key 'capacitty' in storage.options.tiers.0.options" in message
    assert "did you mean capacity?" in message
    assert "run.yaml:8:9: " in message
    assert "run.yaml:9:19: " in message
    assert message.count("memory") >= 2


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [
        ("      - memory\n", "run.yaml:7:7: storage.options.tiers"),
        ("      - memory\n      - {backend: memory, budget: 5}\n", "unknown key 'budget'"),
        (
            "      - {backend: memory, budget_bytes: 1 MB, options: {capacity: 5}}\n      - memory\n",
            "run.yaml:7:41: storage.options.tiers.0.budget_bytes: budget_bytes and options.capacity",
        ),
        (
            "      - {backend: memory, options: {capacity: 5, policy: none}}\n      - memory\n",
            "run.yaml:7:58: storage.options.tiers.0.options.policy: policy 'none'",
        ),
        (
            "      - memory\n      - {backend: tiered, budget_bytes: 5 MB, "
            "options: {tiers: [memory, memory]}}\n",
            "cannot be bounded, so it takes no budget_bytes; leave it out, or choose one that can: ",
        ),
    ],
)
def test_stacks_that_cannot_be_are_refused_in_their_place(tiers: str, expected: str) -> None:
    assert expected in refusal(tiers)


def test_a_stack_may_be_a_tier() -> None:
    inner = {"backend": "tiered", "options": {"tiers": ["memory", "memory"]}}
    with open_storage("tiered", TABLE, tiers=["memory", inner]) as stack:
        stack.upsert([1], np.ones((1, 8), np.float32))
        stack.flush()
        assert stack.size == 1


def test_open_refuses_what_a_config_check_would() -> None:
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


def test_defaults_are_those_of_the_reference() -> None:
    options = TieredOptions.model_validate({"tiers": ["memory", "memory"]})
    assert (options.write, options.promote) == ("back", "always")
    assert (options.false_positive_rate, options.holding_bytes) == (0.01, 64 << 20)


def test_a_deadline_without_end_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="deadline_seconds"):
        open_storage("tiered", TABLE, tiers=["memory", "memory"], deadline_seconds=float("inf"))


@pytest.mark.parametrize(
    ("more", "ranks", "is_refused"),
    [
        ("deadline_seconds: 1\n", "mpi", True),
        ("deadline_seconds: 30\n", "mpi", True),
        ("deadline_seconds: 31\n", "mpi", False),
        ("deadline_seconds: 1\n", "local", False),
    ],
)
def test_a_stack_that_other_ranks_would_not_wait_for_is_refused(
    more: str, ranks: str, is_refused: bool
) -> None:
    more += f"collective: {{backend: {ranks}}}\n"
    text = CONFIG.format(tiers="      [memory, memory]") + more
    found = ""
    try:
        parse_config(text, source="run.yaml", plugin_manager=make_plugin_manager())
    except ConfigError as error:
        found = str(error)  # the framework may not be installed
    said = "storage.options.deadline_seconds must be less than deadline_seconds"
    assert (said in found) == is_refused
    assert not is_refused or "found 30, expected less than" in found


def test_what_is_wrong_with_a_tier_is_said_with_its_table_and_place() -> None:
    tiers = [
        {"backend": "memory", "budget_bytes": "1 MB", "options": {"capacity": 5}},
        "memory",
    ]
    with pytest.raises(
        InvalidArgumentError, match=r"table 'films', tiers\.0 \(memory, budget_bytes 1000000\)"
    ):
        open_storage("tiered", TABLE, tiers=tiers)


def test_a_tier_that_keeps_rows_from_those_below_is_told_of_once(
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
