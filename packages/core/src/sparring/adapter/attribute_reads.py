"""Reads of an attribute by the code of an object, found in the source of its methods.

A table is no matrix, so ``linear(x, self.words.weight)`` cannot go on with one. What a method reads is
followed through local names, loops over containers, and the methods that it calls on ``self``. A read of
which it is not certain whose it is, as of an argument, is left out: it is met when it runs.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["attribute_reads"]


def attribute_reads(
    owner: object, entries: Sequence[str], attributes: Collection[str], foreign: str
) -> Iterator[tuple[object, str]]:
    """Objects of which an attribute is read, and where.

    Args:
        owner: whose class is read.
        entries: the methods to begin with, as ``forward``.
        attributes: names of the attributes, as ``weight``.
        foreign: methods of modules of this package are not read, as ``torch``.
    """
    kind, names, seen = type(owner), list(entries), set[str]()
    while names:
        name = names.pop()
        method: Any = inspect.getattr_static(kind, name, None)
        method = inspect.unwrap(
            getattr(method, "fget", None) or getattr(method, "__func__", method)
        )
        if name in seen or not inspect.isfunction(method):
            continue
        seen.add(name)
        if method.__module__.split(".")[0] == foreign:
            continue
        reads = _Reads(owner, _nodes_of(method))
        names += reads.called
        for found, line in reads.of(attributes):
            file = Path(inspect.getfile(method)).name
            yield found, f"{kind.__name__}.{name}, line {line} of {file}"


@cache
def _nodes_of(method: Any) -> list[ast.AST]:
    """The source of a function; nothing where it is not kept, as at a prompt."""
    try:
        lines, first = inspect.getsourcelines(method)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return []
    return list(ast.walk(ast.increment_lineno(tree, first - 1)))


class _Reads:
    """Reads in the nodes of a method's source, whose ``self`` is `owner`."""

    def __init__(self, owner: object, nodes: Sequence[ast.AST]) -> None:
        self._owner, self._nodes = owner, nodes
        self._names: dict[str, tuple[ast.expr, ast.AST | None]] = {}
        """Local name → what it is; or of what it is each of the elements, and in which loop."""
        self.called: list[str] = []
        """Attributes of ``self``, methods among them."""
        self._asked: set[str] = set()
        """Expressions whose class the method asks for: where one is read, it may be of another."""
        bound: Counter[str] = Counter()
        for node in nodes:
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    bound[name] += 1
                case ast.Assign(targets=[target], value=ast.expr() as value):
                    self._bind(target, value)
                case ast.NamedExpr(target, value) | ast.AnnAssign(
                    target, value=ast.expr() as value
                ):
                    self._bind(target, value)
                case (
                    ast.For() | ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp()
                ):
                    for each in [] if _chooses(node) else getattr(node, "generators", [node]):
                        self._bind_elements(node, each.target, each.iter)
                case ast.Call(ast.Name("isinstance" | "hasattr" | "type"), [of, *_]):
                    self._asked.add(ast.dump(of))
                case ast.Attribute(ast.Name("self"), name):
                    self.called.append(name)
        for name, (_, loop) in list(self._names.items()):
            # After its loop, a name is the last element.
            is_last = loop is not None and _uses(name, ast.walk(loop)) < _uses(name, nodes)
            if bound[name] > 1 or is_last:
                del self._names[name]

    def of(self, attributes: Collection[str]) -> Iterator[tuple[object, int]]:
        """Objects of which one of `attributes` is read, and the lines."""
        for node in self._nodes:
            match node:
                case ast.Attribute(of, name, ast.Load()) if (
                    name in attributes and ast.dump(of) not in self._asked
                ):
                    with suppress(Exception):  # of a property, or of what is set later
                        yield from [(each, node.lineno) for each in self._objects(of)]

    def _objects(self, node: ast.expr) -> list[Any]:
        """All objects that an expression is, one after the other; none where that is not known."""
        match node:
            case ast.Name("self"):
                return [self._owner]
            case ast.Name(name) if name in self._names:
                value, loop = self._names[name]
                found = self._objects(value)
                return found if loop is None else [each for of in found for each in _elements(of)]
            case ast.NamedExpr(value=value):
                return self._objects(value)
            case ast.Attribute(of, name) | ast.Call(
                ast.Name("getattr"), [of, ast.Constant(str(name))]
            ):
                return [getattr(each, name) for each in self._objects(of)]
            case ast.Subscript(of, ast.Constant(key)):
                return [each[key] for each in self._objects(of)]
        return []

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Name(name), _:
                self._names[name] = value, None
            case ast.Tuple(targets), ast.Tuple(values) if len(targets) == len(values):
                for each, its_value in zip(targets, values, strict=True):
                    self._bind(each, its_value)

    def _bind_elements(self, loop: ast.AST, target: ast.expr, of: ast.expr) -> None:
        match of:
            case ast.Call(ast.Name("enumerate"), [inner]) | ast.Call(
                ast.Attribute(inner, "items" | "values")
            ):
                of = inner
        match target:
            case ast.Name(name) | ast.Tuple([_, ast.Name(name)]):
                self._names[name] = of, loop


def _elements(container: Any) -> list[Any]:
    """Of a list, or the values of a dict; nothing is taken from a stream of batches."""
    if not (hasattr(container, "__len__") and hasattr(container, "__getitem__")):
        return []
    return list(container.values() if hasattr(container, "values") else container)


def _uses(name: str, nodes: Iterable[ast.AST]) -> int:
    return sum(isinstance(each, ast.Name) and each.id == name for each in nodes)


def _chooses(loop: ast.AST) -> bool:
    """Whether a loop may do something else with each element."""
    kinds = (ast.If, ast.IfExp, ast.While, ast.BoolOp, ast.Try, ast.Match)
    return any(
        isinstance(each, kinds) or (isinstance(each, ast.comprehension) and bool(each.ifs))
        for each in ast.walk(loop)
    )
