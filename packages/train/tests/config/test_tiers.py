"""Stacks in configurations: errors are reported with their places."""

from __future__ import annotations

import pytest

from sparring import make_plugin_manager
from sparring.errors import ConfigError
from sparring_train.config.reading.loader import parse_config

CONFIG = """\
data: {{kind: table, path: ratings.csv, label: rating, categorical: [user, item], required: [user, item]}}
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
            "run.yaml:7:58: storage.options.tiers.0.options.policy: with policy 'none'",
        ),
        (
            "      - memory\n      - {backend: tiered, budget_bytes: 5 MB, "
            "options: {tiers: [memory, memory]}}\n",
            "has no limit of memory, so budget_bytes cannot be set; remove it, ",
        ),
    ],
)
def test_impossible_stacks_are_rejected_at_their_place(tiers: str, expected: str) -> None:
    assert expected in refusal(tiers)


@pytest.mark.parametrize(
    ("more", "ranks", "is_refused"),
    [
        ("deadline_seconds: 1\n", "mpi", True),
        ("deadline_seconds: 30\n", "mpi", True),
        ("deadline_seconds: 31\n", "mpi", False),
        ("deadline_seconds: 1\n", "local", False),
    ],
)
def test_a_stack_with_too_long_a_deadline_for_other_ranks_is_rejected(
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
