"""Uses of a module's weight by the code of a model: found in the source of `forward`.

A table is no matrix, so ``F.linear(x, self.words.weight)`` cannot go on. What `forward` of each module
of the model reads is followed through the methods that it calls on ``self``. Code that reads a weight in
another way is not seen here; it meets an AttributeError that says so.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from torch import nn

__all__ = ["weight_uses"]


def weight_uses(model: nn.Module) -> dict[int, str]:
    """id of a module → where the weight of this module is read."""
    found: dict[int, str] = {}
    parsed: dict[type, list[tuple[str, ast.Attribute]]] = {}
    for owner in model.modules():
        kind = type(owner)
        if kind.__module__.startswith("torch."):
            continue
        if kind not in parsed:
            parsed[kind] = list(_reads_of(kind))
        for where, read in parsed[kind]:
            module = _resolved(owner, read.value)
            if isinstance(module, nn.Module):
                found.setdefault(id(module), where)
    return found


def _reads_of(kind: type) -> Iterator[tuple[str, ast.Attribute]]:
    """Each ``….weight`` that is read by `forward`, and by methods that it calls."""
    names, seen = ["forward"], set[str]()
    while names:
        name = names.pop()
        method: Any = inspect.getattr_static(kind, name, None)
        method = getattr(method, "fget", None) or getattr(method, "__func__", method)
        if name in seen or not inspect.isfunction(method) or method.__module__.startswith("torch."):
            continue
        seen.add(name)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
        except (OSError, TypeError, SyntaxError):
            continue  # typed at a prompt: its use is met when it runs
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                names.append(node.attr)
            if node.attr == "weight" and isinstance(node.ctx, ast.Load):
                yield f"{kind.__name__}.{name}, line {node.lineno}", node


def _resolved(owner: nn.Module, node: ast.expr) -> object:
    """Object that ``self.a.b[0]`` is for `owner`; None where it is something else."""
    if isinstance(node, ast.Name):
        return owner if node.id == "self" else None
    if isinstance(node, ast.Attribute):
        base = _resolved(owner, node.value)
        return getattr(base, node.attr, None) if isinstance(base, nn.Module) else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        base = _resolved(owner, node.value)
        place: Any = node.slice.value
        if isinstance(base, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            try:
                return base[place]
            except (KeyError, IndexError, TypeError):
                return None
    return None
