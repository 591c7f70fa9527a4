"""Writes the public names of TorchRec that `sparring_torch.torchrec` offers or explains.

    python tools/torchrec_names.py FOLDER… > names.txt

Each FOLDER contains the unpacked wheel of one release, which is parsed and never imported. The file
belongs to `sparring_torch.torchrec`.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

_NOT_PUBLIC = {"tests", "test", "test_utils", "benchmark", "benchmarks", "examples", "scripts"}


def public_names(root: Path) -> dict[str, str]:
    """Returns name → first module that defines it, for classes, functions, names in ``__all__`` and names
    that a package imports from its modules.

    Args:
        root: folder of the package.
    """
    names: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        if _NOT_PUBLIC.isdisjoint(parts) and not path.stem.startswith("test_"):
            module = ".".join(parts).removesuffix(".__init__")
            tree = ast.parse(path.read_text())
            for name, origin in _names_of(tree, is_package=path.stem == "__init__"):
                if not name.startswith("_"):
                    names.setdefault(name, origin or module)
    return names


def _names_of(tree: ast.Module, *, is_package: bool) -> Iterator[tuple[str, str | None]]:
    """Yields names, and the module from which a package imports them."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name, None
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from ((name, None) for name in ast.literal_eval(node.value))
        elif (
            isinstance(node, ast.ImportFrom)
            and is_package
            and (node.module or "").startswith("torchrec")
        ):
            yield from ((each.asname or each.name, node.module) for each in node.names)


def format_names(releases: Iterable[dict[str, str]]) -> str:
    """Returns one line per module, with all its names."""
    by_name: dict[str, str] = {}
    for names in releases:
        by_name |= {name: module for name, module in names.items() if name not in by_name}
    by_module = defaultdict(list)
    for name, module in by_name.items():
        by_module[module].append(name)
    lines = [f"{module}: {' '.join(sorted(by_module[module]))}" for module in sorted(by_module)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(format_names(public_names(Path(each) / "torchrec") for each in sys.argv[1:]), end="")
