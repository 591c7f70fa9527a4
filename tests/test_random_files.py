"""The command line understands random files whose content is known, or stops with a clear message."""

from __future__ import annotations

import dataclasses
import importlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = 5
FILES_PER_PART = 10


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of `random_files`."""
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    return lambda name: importlib.import_module(f"random_files.{name}")


@pytest.fixture
def checker(module: Any) -> Any:
    return module("checker")


@pytest.fixture
def make_file(module: Any, tmp_path: Path) -> Any:
    make = module("generator").make_file
    return lambda seed: make(seed, tmp_path)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_random_file_is_misread(checker: Any, tmp_path: Path, part: int) -> None:
    seeds = range(part * FILES_PER_PART, (part + 1) * FILES_PER_PART)
    outcomes = [checker.check_seed(seed, tmp_path) for seed in seeds]
    assert checker.is_passed(outcomes), "\n".join(checker.summary(outcomes))


@pytest.mark.parametrize("part", range(10))
def test_random_files_contain_their_truth(module: Any, make_file: Any, part: int) -> None:
    """A parser of exactly the dialect of each file reads the values and the counts of the truth."""
    read_rows, equal = module("naive").read_rows, module("checker").are_equal
    for seed in range(part * 20, part * 20 + 20):
        truth = make_file(seed)
        rows = read_rows(truth)
        assert len(rows) == truth.num_rows, seed
        for place, column in enumerate(truth.columns):
            cells = [row[place] for row in rows]
            for number, (found, expected) in enumerate(zip(cells, column.values, strict=False)):
                where = f"seed {seed}, row {number + 1}, column {column.name!r}"
                assert equal(found, expected, 1.0, column.tolerance), (
                    f"{where}: {found}, {expected}"
                )
            if column.distinct is not None:
                known = [each for each in cells if each is not None]
                assert (len(set(known)), len(cells) - len(known)) == (
                    column.distinct,
                    column.missing,
                )


def test_each_choice_of_each_dimension_occurs(module: Any) -> None:
    dimensions = module("dimensions")
    chosen = [dimensions.choose(random.Random(seed)) for seed in range(500)]
    absent = [
        f"{name}: {value}"
        for name, values in dimensions.DIMENSIONS.items()
        for value in values
        if not any(each[name] == value for each in chosen)
    ]
    assert not absent
    certain = sum(not dimensions.doubts_of(each) for each in chosen)
    assert 250 < certain < 450


def test_a_seed_always_makes_the_same_file(module: Any, tmp_path: Path) -> None:
    make = module("generator").make_file
    folders = [tmp_path / "a", tmp_path / "b"]
    for seed in (0, 1, 2, 3):
        files = []
        for folder in folders:
            folder.mkdir(exist_ok=True)
            truth = make(seed, folder)
            files.append(
                [each.read_bytes() for each in sorted(truth.path.rglob("*"))]
                or truth.path.read_bytes()
            )
        assert files[0] == files[1]


def test_checker_accepts_the_truth_and_no_other_role_or_value(checker: Any, make_file: Any) -> None:
    roles = ("label", "user", "item", "id", "list", "number", "time", "left out")
    for seed in range(40):
        truth = make_file(seed)
        right = checker.document_of(truth)
        outcome = checker.judge(truth, checker.read_document(right, ""))
        assert outcome.kind == "understood", outcome
        for place, column in enumerate(truth.columns):
            document = json.loads(right)
            document["columns"][place]["role"] = next(
                each for each in roles if each not in column.roles
            )
            outcome = checker.judge(truth, checker.read_document(json.dumps(document), ""))
            assert (outcome.kind, len(outcome.differences)) == ("misread", 1)
            if column.roles[0] != "left out":
                document = json.loads(right)
                document["rows"][9][place] = "other"
                outcome = checker.judge(truth, checker.read_document(json.dumps(document), ""))
                assert outcome.kind == "misread"
                assert "row 10 is" in outcome.differences[0]


@pytest.mark.parametrize(
    ("found", "expected", "factor", "is_equal"),
    [
        (12, 12.0, 1.0, True),
        (0.125, 12.5, 0.01, True),
        (12.345, 12345.0, 1.0, False),
        ("7", 7, 1.0, False),
        (7, "0007", 1.0, False),
        (2**53 + 1, 2**53, 1.0, False),
        (2.0**53, 2**53 + 1, 1.0, False),
        (True, 1.0, 1.0, False),
        (None, None, 1.0, True),
        (0.0, None, 1.0, False),
        ([8, 14], ["8", "14"], 1.0, True),
        (["[8", "14]"], ["8", "14"], 1.0, False),
        (None, [], 1.0, True),
        ([""], [], 1.0, False),
    ],
)
def test_checker_compares_values(
    checker: Any, found: Any, expected: Any, factor: float, is_equal: bool
) -> None:
    assert checker.are_equal(found, expected, factor, 0) == is_equal


@pytest.mark.parametrize(
    ("exit_code", "message", "kind"),
    [
        (2, "FILE has no header; give column_names=[...]", "stopped"),
        (1, "cannot read FILE: expected a delimiter", "stopped"),
        (2, "there is no header; give column_names=[...]", "unclear"),
        (2, "FILE: failed", "unclear"),
        (1, "Traceback (most recent call last): give FILE", "misread"),
        (134, "FILE: give label=COLUMN", "misread"),
        (0, "", "misread"),
    ],
)
def test_a_clear_message_names_the_file_and_a_fix(
    checker: Any, make_file: Any, exit_code: int, message: str, kind: str
) -> None:
    truth = make_file(1)
    message = message.replace("FILE", truth.path.name)
    outcome = checker.judge(truth, checker.Understood(exit_code, (), (), message))
    assert outcome.kind == kind


def test_a_tenth_of_the_certain_files_may_be_stopped(checker: Any) -> None:
    stopped = checker.Outcome(1, "stopped", True, ("no header",))
    understood = dataclasses.replace(stopped, kind="understood", differences=())
    doubtful = dataclasses.replace(stopped, is_certain=False)
    assert checker.is_passed([stopped] * 3 + [understood] * 27 + [doubtful] * 9)
    assert not checker.is_passed([stopped] * 4 + [understood] * 26)
    assert not checker.is_passed([understood] * 99 + [dataclasses.replace(stopped, kind="misread")])


@pytest.mark.parametrize(
    ("behavior", "kind"),
    [
        ("print", "understood"),
        ("stop", "stopped"),
        ("fail", "unclear"),
        ("raise", "misread"),
        ("write", "misread"),
    ],
)
def test_a_command_is_judged_by_what_it_prints_and_writes(
    checker: Any,
    module: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    behavior: str,
    kind: str,
) -> None:
    (tmp_path / "other").mkdir()
    document = checker.document_of(module("generator").make_file(5, tmp_path / "other"))

    def main() -> int:
        assert sys.argv == ["sparring", "train", "seed_5", "--dry-run", "--json"]
        assert sys.stdin.read() == ""
        if behavior == "raise":
            raise KeyError(behavior)
        if behavior in ("stop", "fail"):
            advice = ": give label=COLUMN" if behavior == "stop" else ""
            print(f"seed_5 has no label{advice}", file=sys.stderr)
            sys.exit(2)
        if behavior == "write":
            Path("seed_5.yaml").touch()
        print(document)
        return 0

    stub = SimpleNamespace(load=lambda: main)
    monkeypatch.setattr(checker.metadata, "entry_points", lambda **_: [stub])
    assert checker.check_seed(5, tmp_path).kind == kind


def test_the_command_runs_in_process_without_a_terminal(checker: Any, tmp_path: Path) -> None:
    code, output, _ = checker.run_command("train", "--help", folder=tmp_path)
    assert code == 0
    assert "sparring train" in output
    found = checker.what_was_understood(tmp_path / "absent.csv")
    assert found.exit_code in (1, 2)
    assert found.message.strip()
