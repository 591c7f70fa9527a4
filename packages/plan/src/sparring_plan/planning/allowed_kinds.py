"""Options of tables for which a user allows some sharding kinds only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace

import numpy as np

from sparring.errors import InvalidArgumentError
from sparring_plan.planning.costs.costs import Options

__all__ = ["with_kinds"]

_NOT_OF_OPTIONS = frozenset({"capacity", "fixed", "start"})


def with_kinds(options: Options, allowed: Mapping[str, Collection[str]]) -> Options:
    """The options of the kinds that are allowed; tables that are not named keep all of theirs.

    Raises:
        InvalidArgumentError: no option of a table is left.
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
                f"plan: table {name!r} may be {' or '.join(sorted(allowed[name]))}, and "
                f"{', '.join(offered)} are offered for it; allow one of these",
                table=name,
            )
    arrays = {
        each.name: getattr(options, each.name)[is_kept]
        for each in fields(options)
        if isinstance(getattr(options, each.name), np.ndarray) and each.name not in _NOT_OF_OPTIONS
    }
    start = np.searchsorted(arrays["table"], np.arange(len(names) + 1))
    return replace(options, **arrays, start=start)
