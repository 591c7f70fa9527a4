"""Splits texts into lists of ids."""

from __future__ import annotations

import ast
import json
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc

__all__ = ["split_lists"]


def split_lists(array: Any, separator: str, is_trimmed: bool) -> Any:
    """Splits texts into an Arrow array of lists of texts.

    Args:
        array: Arrow array of strings.
        separator: text between elements; ``json`` for lists in brackets, as JSON and Python write them.
        is_trimmed: whether spaces around elements, and empty elements, are removed.
    """
    if separator == "json":
        encoded = array.dictionary_encode()
        words = [_parse_list(each) for each in encoded.dictionary.to_pylist()]
        lists = pyarrow.array(words, pyarrow.list_(pyarrow.string()))
        return lists.take(encoded.indices)
    lists = pc.split_pattern(array, separator)
    if not is_trimmed:
        return lists
    parts = pc.utf8_trim_whitespace(lists.flatten())
    is_some = pc.invert(pc.is_in(parts, pyarrow.array(["", "[]"])))
    rows = pc.list_parent_indices(lists).filter(is_some).to_numpy(zero_copy_only=False)
    ends = np.bincount(rows, minlength=len(lists)).cumsum()
    offsets = pyarrow.array(np.concatenate([[0], ends]), pyarrow.int32())
    return pyarrow.ListArray.from_arrays(offsets, parts.filter(is_some))


def _parse_list(text: str) -> list[str]:
    text = text.strip()
    try:
        found = json.loads(text, parse_int=str, parse_float=str)
    except ValueError:
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            # Elements without quotes: [a, b]
            found = [each.strip() for each in text.strip("[](){}").split(",") if each.strip()]
    if not isinstance(found, (list, tuple, set)):
        found = [found]
    return [str(each).strip() for each in found if each is not None]
