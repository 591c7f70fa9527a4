"""Fingerprint of a job: settings that must be equal on all ranks and are compared at each exchange."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

from sparring.contracts.tables.table import TableConfig
from sparring.engine.state import EngineState

__all__ = ["JobFingerprint"]


class JobFingerprint:
    """Settings by name, cached until one of them changes.

    Args:
        config: the run's configuration, JSON values only; may be empty.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._described: tuple[object, Mapping[str, Any]] | None = None

    def describe(self, state: EngineState) -> Mapping[str, Any]:
        """Returns the settings; the same object as in the previous call if nothing changed."""
        tables = tuple(entry.config for entry in list(state.tables.declared.values()))
        devices = _find_row_paths(state)
        policies = {
            "reduction": state.reduction.value,
            "non_finite_gradients": state.non_finite.value,
        }
        known = (tables, devices, policies)
        if self._described is None or self._described[0] != known:
            self._described = (
                known,
                {
                    "code version": _version(),
                    "config": self._config,
                    "tables": {
                        table.name: _described(table)
                        | {
                            "layout": str(state.tables.layout_of(table.name)),
                            "rows travel": devices.get(table.name, "between hosts"),
                        }
                        for table in tables
                    },
                    **policies,
                },
            )
        return self._described[1]


def _described(table: TableConfig) -> dict[str, Any]:
    return {
        "dim": table.dim,
        "dtype": table.dtype,
        "initializer": repr(table.initializer),
        "seed": table.seed,
        "state_width": table.state_width,
        "state_method": table.state_method.casefold(),
        "admission": repr(table.admission),
        "expire": repr(table.expire),
    }


@cache
def _version() -> str:
    try:
        return metadata.version("sparring")
    except metadata.PackageNotFoundError:
        return "unknown"


def _find_row_paths(state: EngineState) -> dict[str, str]:
    """Describes how the rows of each table are transferred between devices, for comparison by all
    ranks."""
    if state.collective.world_size == 1:
        return {}
    words: dict[str, str] = {}
    devices: list[str] = []
    for entry in list(state.tables.entries.values()):
        kernels = entry.kernels
        if kernels is None:
            continue
        if kernels.device not in devices:
            devices.append(kernels.device)
        kind, number = kernels.device.partition(":")[0], devices.index(kernels.device)
        is_direct = state.exchange.stager(kernels).is_direct
        how = "as they are" if is_direct else "via pinned memory"
        # Tables of one device are transferred together, so their grouping must be equal too.
        which = "" if number == 0 else f", device {number + 1} of this rank"
        words[entry.config.name] = f"between devices ({kind}{which}), {how}"
    return words
