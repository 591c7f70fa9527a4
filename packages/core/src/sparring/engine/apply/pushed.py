"""Gradients for storages that update their rows themselves (`SupportsPush`), on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparring.contracts.storage.updates import MethodChoice
from sparring.engine.apply.gradients import sum_own_gradients
from sparring.engine.state import EngineState
from sparring.kernels.cpu import HOST

__all__ = ["push_gradients", "take_pushed"]


def take_pushed(state: EngineState, taken: dict[str, Any]) -> dict[str, Any]:
    """Removes from `taken`, and returns, the gradients of tables whose storages update their rows
    themselves."""
    names = []
    for name in taken:
        state.tables.storage(name)
        if state.tables.entries[name].pushed_to is not None:
            names.append(name)
    return {name: taken.pop(name) for name in names}


def push_gradients(
    state: EngineState, taken: Mapping[str, Any], choices: Mapping[str, MethodChoice]
) -> list[str]:
    """Passes gradients to the storages, one table at a time.

    Returns:
        The tables that had gradients.

    Raises:
        NonFiniteGradientError: a gradient is not finite, and the policy is to raise. Nothing was sent.
        SparringError: a storage failed; the tables before it have applied the step.
    """
    own = sum_own_gradients(state, taken, dict.fromkeys(taken, HOST))
    state.counters.rows_skipped_non_finite += own.num_skipped
    for name, each in own.summed.items():
        pushed_to = state.tables.entries[name].pushed_to
        assert pushed_to is not None
        pushed_to.push(each.keys, each.gradients, choices[name])
        state.counters.rows_updated += len(each.keys)
        state.prefetches.note(name, None)
    return list(own.summed)
