"""Measures whether the tests notice small faults: a random sample of mutations of the source.

usage, in an environment with the packages installed in editable form and with pytest-cov:

    python tools/mutation_sample.py record packages/core packages/serve packages/train
    python tools/mutation_sample.py run --mutations 100 packages/core packages/serve packages/train

`record` runs the tests of the packages once and stores, for each line, the tests that execute it.
`run` draws mutations of executed lines, applies one at a time, runs the tests of its line and reports the
mutations that no test detects. A test that exceeds the time limit has detected its mutation.
Each source file is restored after its mutation, also if the program is interrupted.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RECORD = Path(".coverage.mutations")
MAX_TESTS = 60
"""Maximum number of tests that run for one mutation; tests that need few files are preferred."""
TIME_LIMIT_SECONDS = 600

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """One change of one expression, as the text that replaces a range of a line."""

    path: Path
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        lines = source.encode().split(b"\n")
        old = lines[self.line - 1]
        lines[self.line - 1] = old[: self.start] + self.text.encode() + old[self.end :]
        return b"\n".join(lines).decode()

    def describe(self, source: str) -> str:
        old = source.encode().split(b"\n")[self.line - 1][self.start : self.end].decode()
        return f"{self.path}:{self.line}: {old} -> {self.text}"


def mutations_of(path: Path) -> Iterator[Mutation]:
    """Yields mutations of operators, constants and conditions on one line, except in annotations."""
    tree = ast.parse(path.read_text())
    excluded = {id(each) for node in ast.walk(tree) for each in _annotations(node)}
    for node in ast.walk(tree):
        changed = None if id(node) in excluded else _changed(node)
        if changed is not None and isinstance(node, ast.expr) and node.lineno == node.end_lineno:
            assert node.end_col_offset is not None
            text = f"({ast.unparse(changed)})"
            yield Mutation(path, node.lineno, node.col_offset, node.end_col_offset, text)


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    for name in ("annotation", "returns"):
        value = getattr(node, name, None)
        if value is not None:
            yield from ast.walk(value)


def _changed(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in COMPARISONS:
            return ast.Compare(left, [COMPARISONS[type(op)]()], [right])
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            return ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.BoolOp(op, values):
            return ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() as value):
            return ast.Constant(value + 1)
    return None


def record(packages: list[Path]) -> int:
    """Runs the tests of `packages` and stores which of them execute which line."""
    sources = [f"--cov={each / 'src'}" for each in packages]
    tests = [str(each / "tests") for each in packages]
    options = [
        "-q",
        "-m",
        "not long and not alone",
        "--cov-context=test",
        "--cov-report=",
        *sources,
    ]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = {**_environment(), "COVERAGE_FILE": str(RECORD.resolve())}
    return subprocess.run(command, env=environment, check=False).returncode


def run(packages: list[Path], number: int, seed: int) -> int:
    """Applies a sample of mutations; returns the number that no test detects."""
    from coverage import CoverageData

    data = CoverageData(str(RECORD))
    data.read()
    candidates = []
    for package in packages:
        for path in sorted((package / "src").rglob("*.py")):
            contexts = data.contexts_by_lineno(str(path.resolve()))
            for each in mutations_of(path):
                tests = sorted({name.split("|")[0] for name in contexts.get(each.line, ()) if name})
                if tests:
                    candidates.append((each, tests))
    sample = random.Random(seed).sample(candidates, min(number, len(candidates)))
    undetected = []
    for index, (mutation, tests) in enumerate(sample, 1):
        description = mutation.describe(mutation.path.read_text())
        detected = _is_detected(
            mutation, random.Random(seed).sample(tests, min(MAX_TESTS, len(tests)))
        )
        print(
            f"{index}/{len(sample)} {'detected' if detected else 'MISSED'} {description}",
            flush=True,
        )
        if not detected:
            undetected.append(description)
    print(f"detected {len(sample) - len(undetected)} of {len(sample)} (seed {seed})")
    return len(undetected)


def _is_detected(mutation: Mutation, tests: list[str]) -> bool:
    source = mutation.path.read_text()
    mutation.path.write_text(mutation.apply(source))
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        ran = subprocess.run(
            command,
            env=_environment(),
            capture_output=True,
            timeout=TIME_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        mutation.path.write_text(source)
    if ran.returncode not in (0, 1, 2):
        raise SystemExit(f"pytest ended with {ran.returncode}: {ran.stdout.decode()[-2000:]}")
    return ran.returncode != 0


def _environment() -> dict[str, str]:
    # A stale compiled file of the same second and size would hide a mutation.
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("command", choices=["record", "run"])
    parser.add_argument("packages", nargs="+", type=Path)
    parser.add_argument("--mutations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.command == "record":
        sys.exit(record(given.packages))
    run(given.packages, given.mutations, given.seed)


if __name__ == "__main__":
    main()
