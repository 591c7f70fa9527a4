"""Checks import cycles, sizes of folders, files and pages, uses of public modules, and the rule for core.

    python tools/check_house.py

Prints each finding as ``file:line: …`` and exits with 1 if there is one. Imports inside functions and
under TYPE_CHECKING count. The layers are in ``importlinter.ini``.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from core_rule import misplaced

ROOT = Path(__file__).parents[1]

MAX_MODULES = 20
"""Maximum number of modules in one directory, including `__init__`."""

FOLDERS = (
    "benchmarks", "docs", "fuzz", "packages", "reliability", "sessions", "soak", "tests", "tools",
)  # fmt: skip
"""Folders with Python files."""

MAX_LINES = 800
"""Maximum number of lines of a Python file."""

MAX_LINES_WITHOUT_REASON = 500
"""Longer files give the reason in their docstring: ``The file is long because …``."""


MAX_WORDS = 100_000
"""Maximum number of words of written pages and notebooks below `docs/`, without code and table marks."""


GENERATED_PAGES = ("reference/config.md", "reference/command-line.md")
"""Pages that are generated from descriptions in the code; users look up single entries in them."""


def main() -> int:
    findings = [
        *circles(),
        *conflict_markers(ROOT),
        *crowded_directories(),
        *long_files(),
        *long_documentation(ROOT),
        *face_in_core(),
        *misplaced(),
        *private_modules(),
    ]
    print(*findings, f"{len(findings)} findings", sep="\n")
    return 1 if findings else 0


def circles() -> Iterator[str]:
    """Yields import cycles among the modules of each package."""
    for source in sorted(ROOT.glob("packages/*/src/*/")):
        modules = _modules(source)
        graph = {name: _imports(name, path, modules) for name, path in modules.items()}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            yield f"{source.relative_to(ROOT)}: import cycle: {' -> '.join(error.args[1])}"


def crowded_directories() -> Iterator[str]:
    """Yields directories of source with more than `MAX_MODULES` modules."""
    for source in sorted(ROOT.glob("packages/*/src")):
        for directory in sorted({path.parent for path in source.rglob("*.py")}):
            number = len(list(directory.glob("*.py")))
            if number > MAX_MODULES:
                yield (
                    f"{directory.relative_to(ROOT)}: contains {number} modules, more than {MAX_MODULES}; "
                    "group them by the task that a reader has"
                )


def long_files() -> Iterator[str]:
    """Yields Python files that are too long, or long without a reason."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text("utf-8")
            number = len(text.splitlines())
            if number > MAX_LINES:
                yield (
                    f"{path.relative_to(ROOT)}: has {number} lines, more than {MAX_LINES}; split it by "
                    "task"
                )
            elif number > MAX_LINES_WITHOUT_REASON:
                reason = " ".join((ast.get_docstring(ast.parse(text)) or "").split())
                if "file is long because" not in reason:
                    yield (
                        f"{path.relative_to(ROOT)}: has {number} lines, more than "
                        f"{MAX_LINES_WITHOUT_REASON}; split it by task, or add to its docstring: The "
                        "file is long because …"
                    )


def conflict_markers(root: Path) -> Iterator[str]:
    """Yields lines of Markdown files that contain both sides of a merge."""
    patterns = ("*.md", "docs/**/*.md", "packages/*/*.md")
    for path in sorted(each for pattern in patterns for each in root.glob(pattern)):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line.startswith(("<<<<<<< ", ">>>>>>> ")):
                yield f"{path.relative_to(root)}:{number}: a conflict of a merge; keep one side"


def long_documentation(root: Path) -> Iterator[str]:
    """Yields a finding if the documentation contains too many words."""
    number = 0
    docs = root / "docs"
    for path in sorted(docs.rglob("*")):
        text = ""
        if path.relative_to(docs).as_posix() in GENERATED_PAGES:
            continue
        if path.suffix == ".md":
            text = path.read_text("utf-8")
            text = re.sub(r"^ *(```|~~~).*?^ *\1 *$", "", text, flags=re.M | re.S)
        elif path.suffix == ".ipynb":
            cells = json.loads(path.read_text("utf-8"))["cells"]
            text = "\n".join(
                "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
            )
        number += len(re.findall(r"\S*\w\S*", text))
    if number > MAX_WORDS:
        yield (
            f"docs: contains {number} words outside of code blocks, more than {MAX_WORDS}; remove "
            "what another page explains, and link to that page"
        )


def face_in_core() -> Iterator[str]:
    """Yields modules of core that import from the public module of core, which imports all of them."""
    source = ROOT / "packages/core/src/sparring"
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "sparring" and not node.level:
                for name in sorted({alias.name for alias in node.names} - {"_native"}):
                    if not (source / name).is_dir() and not (source / f"{name}.py").exists():
                        where = f"{path.relative_to(ROOT)}:{node.lineno}"
                        yield f"{where}: import {name} from the module that defines it"


def private_modules() -> Iterator[str]:
    """Yields imports of private modules of other packages, or of names that are not public."""
    sources = {path.name: path for path in ROOT.glob("packages/*/src/sparring_*/")}
    faces = {name: _listed(source / "__init__.py") for name, source in sources.items()}
    for own, source in sorted(sources.items()):
        for path in sorted(source.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names if "." in alias.name]
                elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    listed = faces.get(node.module, set())
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
                    names = [name for name in names if name.rpartition(".")[2] not in listed]
                else:
                    continue
                for name in names:
                    if (sibling := name.partition(".")[0]) in faces and sibling != own:
                        where = f"{path.relative_to(ROOT)}:{node.lineno}"
                        yield f"{where}: {name} is private to {sibling}; import from its public modules"


def _listed(face: Path) -> set[str]:
    """Returns the names in ``__all__`` of a package."""
    for node in ast.parse(face.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def _modules(source: Path) -> dict[str, Path]:
    found = {}
    for path in source.rglob("*.py"):
        parts = (source.name, *path.relative_to(source).with_suffix("").parts)
        found[".".join(parts[:-1] if path.name == "__init__.py" else parts)] = path
    return found


def _imports(name: str, path: Path, modules: Mapping[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for each in targets:
            target = each
            while target and target not in modules:
                target = target.rpartition(".")[0]
            # Native libraries are not Python modules, so their name is the name of their package.
            if target and target != name and "._native" not in each and "._emulated" not in each:
                found.add(target)
    return found


if __name__ == "__main__":
    sys.exit(main())
