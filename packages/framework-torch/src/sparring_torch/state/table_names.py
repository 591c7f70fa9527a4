"""Names for tables that the user did not name."""

from __future__ import annotations

import weakref
from itertools import count
from typing import Any

__all__ = ["find_free_table_name", "reserve_table_name"]

_holders: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def find_free_table_name(stem: str, holder: object) -> str:
    """`stem`, or `stem` and a number, that no living module holds; from now on `holder` does.

    Two modules without names must not share a table, and their initial rows, which depend on the
    table's name, must differ. A name is free again when its holder is gone.
    """
    for number in count():
        name = stem if number == 0 else f"{stem}_{number}"
        if name not in _holders:
            _holders[name] = holder
            return name
    raise AssertionError("count() does not end")


def reserve_table_name(name: str, holder: object) -> None:
    """`name`, of a module that was copied or unpickled, is not free while `holder` lives."""
    _holders.setdefault(name, holder)
