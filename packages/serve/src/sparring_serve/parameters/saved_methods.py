"""Steps of tables in snapshots of ranks, as counted by a framework's optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparring import Snapshot

__all__ = ["read_method_steps"]


def read_method_steps(snapshot: Snapshot) -> dict[str, int]:
    """Returns the number of steps of each table's update method; tables without an optimizer are
    omitted.

    Finds the state of `sparring_torch.Optimizer.state_dict` anywhere in the snapshot: ``native`` and
    ``state``, table → ``step``.
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
    """Yields all mappings in a JSON value."""
    if isinstance(values, Mapping):
        yield values
        values = list(values.values())
    if isinstance(values, list):
        for each in values:
            yield from _mappings(each)
