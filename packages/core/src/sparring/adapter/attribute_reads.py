"""Reads of an attribute by the code of an object, found in the source of its methods.

A table is no matrix, so ``linear(x, self.words.weight)`` cannot go on with one. What a method reads is
followed through the methods that it calls on ``self``. Code that reads in another way is not seen here.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

__all__ = ["attribute_reads"]


def attribute_reads(
    owner: object, entry: str, attribute: str, foreign: str
) -> Iterator[tuple[object, str]]:
    """Objects whose attribute is read, and where.

    Args:
        owner: whose class is read.
        entry: the method to begin with, as ``forward``.
        attribute: name of the attribute, as ``weight``.
        foreign: methods of modules of this package are not read, as ``torch``.
    """
    kind: Any = type(owner)
    for where, read in _reads_of(kind, entry, attribute, foreign):
        found = _resolved(owner, read)
        if found is not None:
            yield found, where


@cache
def _reads_of(
    kind: type, entry: str, attribute: str, foreign: str
) -> tuple[tuple[str, ast.expr], ...]:
    """Place and expression of each object whose attribute is read."""
    names, seen = [entry], set[str]()
    found: list[tuple[str, ast.expr]] = []
    while names:
        name = names.pop()
        method: Any = inspect.getattr_static(kind, name, None)
        method = getattr(method, "fget", None) or getattr(method, "__func__", method)
        if name in seen or not inspect.isfunction(method):
            continue
        seen.add(name)
        if method.__module__.split(".")[0] == foreign:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
        except (OSError, TypeError, SyntaxError):
            continue  # typed at a prompt: what it reads is met when it runs
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                names.append(node.attr)
            if node.attr == attribute and isinstance(node.ctx, ast.Load):
                found.append((f"{kind.__name__}.{name}, line {node.lineno}", node.value))
    return tuple(found)


def _resolved(owner: object, node: ast.expr) -> Any:
    """Object that ``self.a.b[0]`` is for `owner`; None where it is something else."""
    if isinstance(node, ast.Name):
        return owner if node.id == "self" else None
    try:
        if isinstance(node, ast.Attribute):
            return getattr(_resolved(owner, node.value), node.attr, None)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return _resolved(owner, node.value)[node.slice.value]
    except (KeyError, IndexError, TypeError):
        return None
    return None
