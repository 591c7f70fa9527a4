"""Finds the messages in the sources of all packages, and what the sources define.

The sources are parsed, not imported, so no framework is needed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Message",
    "Project",
    "classes",
    "functions",
    "has_member",
    "messages",
    "native_messages",
    "packages",
    "projects",
    "takes",
    "trees",
    "words",
]

ROOT = Path(__file__).parents[1]

SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))

NATIVE = sorted(
    path
    for ending in ("cc", "cu", "h", "cuh")
    for path in ROOT.glob(f"packages/*/native/**/*.{ending}")
    if not path.stem.endswith("_test")
)

VERB = re.compile(
    r"\b(add|allow|call|check|choose|convert|create|declare|delete|export|give|increase|install|"
    r"join|leave|load|lower|make|mark|name|needs?|omit|open|pass|publish|put|raise|remove|repair|request|"
    r"restart|run|save|see|select|set|specify|start|train|try|unset|upgrade|use|wrap|write)\b",
    re.I,
)


class Message(NamedTuple):
    place: str
    text: str


class Function(NamedTuple):
    parameters: frozenset[str]
    takes_any: bool
    """Whether it has ``**named``."""


class Class(NamedTuple):
    package: str
    bases: tuple[str, ...]
    fields: frozenset[str]
    methods: dict[str, Function]


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in SOURCES}


def text_of(node: ast.AST) -> str:
    """Returns a literal as its reader sees it, with {} for inserted values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) or "{}" for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ""


def literals(node: ast.AST) -> Iterator[ast.AST]:
    """Returns the outermost literals below a node, without docstrings."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if text_of(node):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from literals(child)


@cache
def messages() -> list[Message]:
    found = []
    for path, tree in trees().items():
        for node in literals(tree):
            text = text_of(node)
            # A single word is a name; markup and programs are not messages.
            if "@hookimpl" in text:
                continue
            if " " in text and VERB.search(text) and "<" not in text.replace("<= ", ""):
                line = getattr(node, "lineno", 0)
                found.append(Message(f"{path.relative_to(ROOT)}:{line}", text))
    return found


@cache
def native_messages() -> list[Message]:
    found = []
    literal = r'"(?:[^"\\\n]|\\.)*"'
    joined = re.compile(rf"{literal}(?:\s*(?:\+[^;\"]*?\+)?\s*{literal})*")
    for path in NATIVE:
        code = re.sub(r"//[^\n]*", "", path.read_text())
        for each in joined.finditer(re.sub(r"#include[^\n]*", "", code)):
            text = "".join(part[1:-1] for part in re.findall(literal, each[0]))
            if " " in text and VERB.search(text):
                found.append(Message(str(path.relative_to(ROOT)), text))
    return found


def function_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    given = node.args
    names = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    return Function(frozenset(names), given.kwarg is not None)


def last_name(node: ast.expr) -> str:
    return ast.unparse(node).split("[")[0].split(".")[-1]


@cache
def classes() -> dict[str, list[Class]]:
    found: dict[str, list[Class]] = {}
    for path, tree in trees().items():
        package = path.parts[path.parts.index("src") + 1]
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            fields, methods = set(), {}
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    fields.add(each.target.id)
                elif isinstance(each, ast.Assign):
                    fields |= {name.id for name in each.targets if isinstance(name, ast.Name)}
                elif isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    methods[each.name] = function_of(each)
            for each in ast.walk(node):  # attributes that methods set
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                    fields.add(each.attr)
            bases = tuple(map(last_name, node.bases))
            made = Class(package, bases, frozenset(fields), methods)
            found.setdefault(node.name, []).append(made)
    return found


@cache
def functions() -> dict[str, list[Function]]:
    found: dict[str, list[Function]] = {}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.setdefault(node.name, []).append(function_of(node))
    return found


def lineage(made: Class) -> list[Class]:
    """Returns a class and its bases in this repository; a base in the same package comes first."""
    found, waiting = [made], list(made.bases)
    while waiting:
        known = [each for each in classes().get(waiting.pop(0), []) if each not in found]
        known.sort(key=lambda each: each.package != made.package)
        for base in known[:1]:
            found.append(base)
            waiting += base.bases
    return found


def classes_named(owner: str) -> list[Class]:
    package, _, name = owner.rpartition(".")
    return [each for each in classes().get(name, []) if package in ("", each.package)]


def has_member(name: str, member: str) -> bool:
    return any(
        member in each.fields or member in each.methods
        for made in classes_named(name)
        for each in lineage(made)
    )


def takes(owner: str, argument: str) -> bool:
    """Returns whether all classes, methods and functions of a name accept an argument."""
    if made := classes_named(owner):
        return all(_makes_with(each, argument) for each in made)
    name, _, method = owner.rpartition(".")
    if found := [
        ancestor.methods[method]
        for made in classes_named(name)
        for ancestor in lineage(made)
        if method in ancestor.methods
    ]:
        return all(argument in each.parameters for each in found)
    known = functions().get(owner, [])
    return bool(known) and all(argument in each.parameters for each in known)


def _makes_with(made: Class, argument: str) -> bool:
    for each in lineage(made):
        maker = each.methods.get("__init__")
        if maker is not None:
            if argument in maker.parameters:
                return True
            if not maker.takes_any:
                return False
    return any(argument in each.fields for each in lineage(made))


@cache
def words() -> set[str]:
    """Returns every name that a source or a C header defines, or contains as a whole literal."""
    found: set[str] = set(functions())
    for made in (each for several in classes().values() for each in several):
        found |= made.fields
    for several in functions().values():
        for each in several:
            found |= each.parameters
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.keyword) and node.arg:
                found.add(node.arg)
    headers = "".join(path.read_text() for path in ROOT.glob("packages/*/include/*.h"))
    functions_of_c = set(re.findall(r"\b(sparring_\w+)\(", headers))
    return found | functions_of_c | {path.stem for path in SOURCES} | packages()


@cache
def packages() -> set[str]:
    return {path.parts[path.parts.index("src") + 1] for path in SOURCES}


class Project(NamedTuple):
    folder: Path
    extras: dict[str, str]
    """Extra → packages that must be installed first."""
    plugins: dict[str, str]
    """Plugin → its module."""


@cache
def projects() -> dict[str, Project]:
    """Returns the relevant parts of the `pyproject.toml` of each distribution."""
    found = {}
    for path in ROOT.glob("packages/*/pyproject.toml"):
        sections = dict(
            re.findall(r"^\[([\w.-]+)\]\n(.*?)(?=^\[|\Z)", path.read_text(), re.M | re.S)
        )
        name = re.findall(r'^name = "(.*)"', sections["project"], re.M)[0]
        extras = sections.get("project.optional-dependencies", "")
        plugins = sections.get("project.entry-points.sparring", "")
        found[name] = Project(
            path.parent,
            dict(re.findall(r'^([\w-]+) = \[\s*"([\w.-]+)', extras, re.M)),
            dict(re.findall(r'^([\w-]+) = "([\w.]+)"', plugins, re.M)),
        )
    return found
