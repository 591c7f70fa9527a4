"""Options of tables for which the user allows only some sharding kinds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace

import numpy as np

from sparring.errors import InvalidArgumentError
from sparring_plan.planning.costs.costs import Options

__all__ = ["with_kinds"]

_NOT_OF_OPTIONS = frozenset({"capacity", "fixed", "start"})


def with_kinds(options: Options, allowed: Mapping[str, Collection[str]]) -> Options:
    """Returns the options of the allowed kinds; tables without an entry keep all options.

    Raises:
        InvalidArgumentError: A table has no remaining option.
    """
    if not allowed:
        return options
    names = options.table_names
    is_kept = np.array(
        [
            names[table] not in allowed or options.shapes[shape].kind in allowed[names[table]]
            for table, shape in zip(options.table, options.shape, strict=True)
        ],
        bool,
    )
    for table, name in enumerate(names):
        if not is_kept[options.of(table)].any():
            offered = sorted({options.shape_of(option).kind for option in options.of(table)})
            raise InvalidArgumentError(
                f"plan: table {name!r} is restricted to {' or '.join(sorted(allowed[name]))}, but only "
                f"{', '.join(offered)} are possible; allow one of these",
                table=name,
            )
    arrays = {
        each.name: getattr(options, each.name)[is_kept]
        for each in fields(options)
        if isinstance(getattr(options, each.name), np.ndarray) and each.name not in _NOT_OF_OPTIONS
    }
    start = np.searchsorted(arrays["table"], np.arange(len(names) + 1))
    return replace(options, **arrays, start=start)
