"""Names of tables that the user did not name."""

from __future__ import annotations

import weakref
from itertools import count
from typing import Any

__all__ = ["find_free_table_name", "reserve_table_name"]

_holders: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def find_free_table_name(stem: str, holder: object) -> str:
    """Returns `stem`, or `stem` with a number, that no living module uses, and reserves it.

    Two modules without names must not share a table, and their initial rows, which depend on the
    table's name, must differ. A name becomes free when its holder is freed.
    """
    for number in count():
        name = stem if number == 0 else f"{stem}_{number}"
        if name not in _holders:
            _holders[name] = holder
            return name
    raise AssertionError("count() does not end")


def reserve_table_name(name: str, holder: object) -> None:
    """Reserves the name of a copied or unpickled module while `holder` lives."""
    _holders.setdefault(name, holder)
