"""The rule that decides which modules belong to core.

A module of core is needed by `StepContainer`, by two framework adapters, or is a default that core
registers. Everything else belongs to a separate package. A module is needed if an import chain leads to
it: imports inside functions count, and those of public modules are followed to the module that defines
the name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ROOT / "packages/core/src/sparring"
ADAPTERS = ("framework-torch", "framework-tf", "framework-jax")
FACES = ("sparring", "sparring.adapter", "sparring.contracts")

DEFAULTS = (
    "sparring.collective.local",
    "sparring.contracts.tables.initializers",
    "sparring.kernels.bloom",
    "sparring.kernels.cpu",
    "sparring.rendezvous.environment",
    "sparring.sharding.kinds",
    "sparring.storage.memory",
    "sparring.updates.builtin",
)
"""Modules that core registers: the memory storage, the local collective, the CPU kernels, the single
and the environment rendezvous, the built-in update methods, initializers and sharding kinds. The Bloom
filter is a CPU kernel of the native library, which storage-tiered and packed share. The modules
that register them, `plugin.py`, belong to core; being imported by them is not sufficient for others."""

FOUNDATIONS = (
    "sparring.__main__",
    "sparring._lazy",
    "sparring._loader",
    "sparring._version",
    "sparring.kernels.strings",
)
"""Modules that create the public modules and load the native library; the hash of strings, which all
packages use; and the module that ``python -m sparring`` and ``torchrun -m sparring`` run, which starts
the command of sparring-cli."""


def misplaced() -> Iterator[str]:
    """Yields modules of core that violate the rule."""
    modules = _modules()
    homes = {face: _homes(modules[face]) for face in FACES}
    needed = _reached(
        ["sparring.engine.container", *_of_adapters(modules, homes), *DEFAULTS, *FOUNDATIONS],
        modules,
        homes,
    )
    for name, path in sorted(modules.items()):
        if name not in needed and path.name not in ("__init__.py", "plugin.py"):
            yield (
                f"{path.relative_to(ROOT)}: neither StepContainer nor two adapters need this module of "
                "core; move it to the package that uses it"
            )


def _of_adapters(modules: dict[str, Path], homes: dict[str, dict[str, str]]) -> Iterator[str]:
    users: dict[str, set[str]] = {}
    for package in ADAPTERS:
        for path in (ROOT / "packages" / package / "src").rglob("*.py"):
            for found in _imported(path, modules, homes):
                users.setdefault(found, set()).add(package)
    return (name for name, packages in users.items() if len(packages) > 1)


def _reached(
    roots: Iterable[str], modules: dict[str, Path], homes: dict[str, dict[str, str]]
) -> set[str]:
    found, waiting = set[str](), list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(_imported(modules[name], modules, homes))
    return found


def _imported(
    path: Path, modules: dict[str, Path], homes: dict[str, dict[str, str]]
) -> Iterator[str]:
    """Yields modules of core that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
            continue
        for alias in node.names:
            found = homes.get(node.module, {}).get(alias.name, f"{node.module}.{alias.name}")
            found = found if found in modules else node.module
            if found in modules and found not in FACES:
                yield found


def _homes(face: Path) -> dict[str, str]:
    """Returns the module that defines each name of a public module."""
    return {
        alias.name: node.module
        for node in ast.walk(ast.parse(face.with_suffix(".pyi").read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sparring.")
        for alias in node.names
    }


def _modules() -> dict[str, Path]:
    found = {}
    for path in CORE.rglob("*.py"):
        parts = ("sparring", *path.relative_to(CORE).with_suffix("").parts)
        found[".".join(parts[:-1] if path.name == "__init__.py" else parts)] = path
    return found
