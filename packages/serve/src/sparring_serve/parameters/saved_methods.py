"""Steps of tables in snapshots of ranks, where an optimizer of a framework has counted them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparring import Snapshot

__all__ = ["read_method_steps"]


def read_method_steps(snapshot: Snapshot) -> dict[str, int]:
    """Table → steps that its update method has taken; tables that no optimizer tells of are left out.

    `sparring_torch.Optimizer.state_dict`, wherever it was saved, has ``native`` and ``state``: table →
    ``step``.
    """
    steps: dict[str, int] = {}
    for name in snapshot.state_names(0):
        for each in _mappings(snapshot.state(name).values):
            if "native" in each and isinstance(state := each.get("state"), Mapping):
                for table, scalars in state.items():
                    if isinstance(scalars, Mapping) and isinstance(scalars.get("step"), int):
                        steps[table] = scalars["step"]
    return steps


def _mappings(values: Any) -> Iterator[Mapping[str, Any]]:
    """All mappings in a JSON value."""
    if isinstance(values, Mapping):
        yield values
        values = list(values.values())
    if isinstance(values, list):
        for each in values:
            yield from _mappings(each)
