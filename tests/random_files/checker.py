"""Compares what the command line understands of a file with its truth.

`what_was_understood` runs ``sparring train FILE --dry-run --json`` and is the only function that depends
on the command. It expects this document on standard output, on its last line or as all of it:

    {
      "file": "log.csv",                  # as given
      "format": {                         # for information; the comparison ignores it
        "container": "csv",               # csv, jsonl, parquet, lines (all items of a user per line)
        "delimiter": ";", "quote": "\\"", "encoding": "utf-8", "header": "present",
        "compression": null, "decimal": ",", "files": 1
      },
      "columns": [                        # all columns, in the order of the file
        {
          "name": "user_id",              # trimmed, without the type of RecBole
          "role": "user",                 # label, user, item, id, list, number, time, left out
          "examples": ["u1", "u2"],       # two values after parsing
          "distinct": 12,                 # distinct values in the rows that were read, without missing
                                          # ones; null for lists
          "missing": 0,                   # missing values in the rows that were read
          "why": "name of users"
        }
      ],
      "rows_read": 240,                   # rows on which the counts are based
      "rows": [{"user_id": "u1"}],        # the first 20 rows after parsing, before any scaling; an array
                                          # per row, in the order of the columns, is accepted, too
      "remarks": ["..."]
    }

Values in ``rows``, and the examples:

- ids (user, item, id) are integers if they are stored as int64, and strings otherwise: leading zeros, hex
  and integers beyond 64 bits are strings. A missing id is null. 12.0 in a column of codes is 12.
- numbers are the float64 before scaling; null if missing.
- labels are numbers: yes, Y and True are 1.
- times are integers: microseconds since 1970 in UTC. A time without an offset is in UTC.
- lists are arrays of strings, also if the elements are integers; an empty list is ``[]``.
- a column that is left out needs no values.
- if a line contains all items of a user, a row is one event: a user and an item.

The dry run writes no file, and does not read standard input. The exit code is 0 if the file is understood
without doubt. Otherwise it is 1 or 2, and the message names the file and a fix: an option, a
``key=value``, or what is supported.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from unittest import mock

from .generator import ColumnTruth, Truth, make_file

Kind = Literal["understood", "stopped", "unclear", "misread"]
KINDS: tuple[Kind, ...] = ("understood", "stopped", "unclear", "misread")
"""`stopped`: with a clear message. `unclear`: stopped without the name of the file or a fix."""

DRY_RUN = ("--dry-run", "--json")

MAX_STOPPED = 0.1
"""Maximum share of the certain files at which the command may stop."""

FIX = re.compile(
    r"--[a-z]|\w+=\S|\b(add|change|choose|convert|give|rename|remove|replace|save|set|use|write)\b"
    r"|\b(expected|supported)\b",
    re.IGNORECASE,
)
"""Words of a message that tell the user what to do."""


@dataclass(frozen=True, slots=True)
class Understood:
    """What the command understood, or why it stopped.

    Attributes:
        exit_code: the exit code; -1 if the command raised an exception.
        columns: name and role of each column, and counts; empty if the command stopped.
        rows: the first rows, each with one value per column.
        message: everything that was printed, except the document.
        written: names of new files and folders; a dry run writes none.
    """

    exit_code: int
    columns: tuple[Mapping[str, Any], ...]
    rows: tuple[tuple[Any, ...], ...]
    message: str
    written: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one seed; `differences` explains each kind except `understood`."""

    seed: int
    kind: Kind
    is_certain: bool
    differences: tuple[str, ...]


def what_was_understood(path: Path) -> Understood:
    """Runs the dry run of the command line in this process, without a terminal, in the file's folder."""
    before = {*path.parent.iterdir()}
    exit_code, output, message = run_command("train", path.name, *DRY_RUN, folder=path.parent)
    written = tuple(sorted(each.name for each in {*path.parent.iterdir()} - before))
    if exit_code != 0:
        return Understood(exit_code, (), (), f"{output}\n{message}", written)
    try:
        return replace(read_document(output, message), written=written)
    except (ValueError, KeyError, TypeError) as error:
        return Understood(-1, (), (), f"no document of a dry run ({error!r}):\n{output}\n{message}")


def read_document(output: str, message: str) -> Understood:
    """Reads the document that the docstring of this module describes."""
    text = output.strip()
    document = json.loads(text if text.startswith("{") else text.splitlines()[-1])
    columns = tuple(document["columns"])
    names = [each["name"] for each in columns]
    rows = tuple(
        tuple(row) if isinstance(row, list) else tuple(row.get(name) for name in names)
        for row in document["rows"]
    )
    return Understood(0, columns, rows, message)


def run_command(*arguments: str, folder: Path) -> tuple[int, str, str]:
    """Runs the entry point `sparring`. Returns its exit code, standard output and standard error."""
    (entry,) = metadata.entry_points(group="console_scripts", name="sparring")
    main = entry.load()
    output, message = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", ["sparring", *arguments]))
        stack.enter_context(mock.patch.object(sys, "stdin", io.StringIO()))
        stack.enter_context(mock.patch.dict(os.environ, {"COLUMNS": "200", "NO_COLOR": "1"}))
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(message))
        stack.enter_context(working_folder(folder))
        try:
            exit_code = main() or 0
        except SystemExit as stop:
            exit_code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            return -1, output.getvalue(), message.getvalue() + traceback.format_exc()
    return int(exit_code), output.getvalue(), message.getvalue()


@contextlib.contextmanager
def working_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def check_seed(seed: int, folder: Path) -> Outcome:
    """Writes the file of a seed, and compares what is understood of it with its truth."""
    truth = make_file(seed, folder)
    return judge(truth, what_was_understood(truth.path))


def judge(truth: Truth, understood: Understood) -> Outcome:
    """Returns the outcome, with the differences between the truth and what was understood."""

    def outcome(kind: Kind, *differences: str) -> Outcome:
        return Outcome(truth.seed, kind, truth.is_certain, differences)

    last_lines = " / ".join(understood.message.strip().splitlines()[-3:])
    if "Traceback" in understood.message or understood.exit_code not in (0, 1, 2):
        return outcome("misread", f"exit code {understood.exit_code}: {last_lines}")
    if understood.written:
        return outcome("misread", f"the dry run wrote {', '.join(understood.written)}")
    if understood.exit_code != 0:
        # A console may break a long line within a name.
        joined = "".join(understood.message.split())
        if truth.path.name not in joined or not FIX.search(understood.message):
            return outcome("unclear", last_lines)
        return outcome("stopped", last_lines)
    differences = [*compare(truth, understood)]
    return outcome("misread" if differences else "understood", *differences)


def compare(truth: Truth, understood: Understood) -> Iterator[str]:
    """Yields a line for each column, role, value and count that differs."""
    if len(understood.columns) != len(truth.columns):
        names = [each["name"] for each in understood.columns]
        yield f"columns {names}, expected {[each.name for each in truth.columns]}"
        return
    if not understood.rows:
        yield "no rows"
    given = [str(each["name"]).strip() for each in understood.columns]
    if truth.chosen["header"] == "typed":
        given = [each.split(":")[0] for each in given]
    for position, column in enumerate(truth.columns):
        # The order of the columns counts only where names do not tell them apart.
        place = given.index(column.name) if column.name and column.name in given else position
        found = understood.columns[place]
        label = repr(column.name) if column.name else f"column {position + 1}"
        if column.name and column.name != given[place]:
            yield f"{label}: named {found['name']!r}"
        if found["role"] not in column.roles:
            yield f"{label}: role {found['role']!r}, expected {' or '.join(column.roles)}"
        elif found["role"] != "left out":
            values = [row[place] for row in understood.rows[: len(column.values)]]
            yield from (f"{label}: {each}" for each in compare_values(column, values))
            yield from (f"{label}: {each}" for each in compare_counts(column, found))


def compare_values(column: ColumnTruth, found: list[Any]) -> Iterator[str]:
    """Yields the first value that differs, if any factor of the column leaves one."""
    misses = []
    for factor in column.factors:
        wrong = (
            f"row {row + 1} is {value!r}, expected {expected!r}"
            for row, (value, expected) in enumerate(zip(found, column.values, strict=False))
            if not are_equal(value, expected, factor, column.tolerance)
        )
        if (miss := next(wrong, None)) is None:
            return
        misses.append(miss)
    yield misses[0]


def are_equal(found: Any, expected: Any, factor: float, tolerance: float) -> bool:
    """Compares a value: numbers up to the rounding of float32, and everything else exactly."""
    if expected is None:
        return found is None or found == "" or (isinstance(found, float) and math.isnan(found))
    if isinstance(expected, list):
        return [*map(str, found or [])] == expected if isinstance(found, list | None) else False
    if isinstance(found, bool) or isinstance(expected, str) or isinstance(found, str):
        return type(found) is type(expected) and found == expected
    if isinstance(expected, int):
        # A float cannot represent each id.
        return isinstance(found, int) and abs(found - expected) <= tolerance
    if not isinstance(found, int | float):
        return False
    return math.isclose(found, expected * factor, rel_tol=1e-6, abs_tol=1e-9)


def compare_counts(column: ColumnTruth, found: Mapping[str, Any]) -> Iterator[str]:
    """Yields the counts that differ; a count that is not stated or null is not compared."""
    for name, expected in (("distinct", column.distinct), ("missing", column.missing)):
        if expected is not None and found.get(name) not in (None, expected):
            # An empty list can be counted as a missing value.
            if name == "missing" and column.roles[0] == "list":
                continue
            yield f"{name} {found[name]}, expected {expected}"


def document_of(truth: Truth) -> str:
    """Returns the document of a command that understands everything; for tests of this module."""
    names = [each.name or f"column_{number}" for number, each in enumerate(truth.columns)]
    columns = [
        {"name": name, "role": each.roles[0], "distinct": each.distinct, "missing": each.missing}
        for name, each in zip(names, truth.columns, strict=True)
    ]
    rows = [[*row] for row in zip(*(each.values for each in truth.columns), strict=True)]
    return json.dumps({"file": truth.path.name, "columns": columns, "rows": rows, "remarks": []})


def is_passed(outcomes: list[Outcome]) -> bool:
    """Returns whether no file is misread, no message is unclear, and few certain files are stopped."""
    certain = [each for each in outcomes if each.is_certain]
    stopped = sum(each.kind == "stopped" for each in certain)
    is_clear = all(each.kind in ("understood", "stopped") for each in outcomes)
    return is_clear and stopped <= max(1, MAX_STOPPED * len(certain))


def summary(outcomes: list[Outcome]) -> list[str]:
    """Returns a line per kind of outcome, and a line per difference."""
    lines = []
    for kind in KINDS:
        seeds = [each for each in outcomes if each.kind == kind]
        certain = sum(each.is_certain for each in seeds)
        lines.append(f"{kind:10} {len(seeds):4}, {certain} of them certain")
    for each in outcomes:
        if each.kind in ("unclear", "misread") or (each.kind == "stopped" and each.is_certain):
            lines += [f"seed {each.seed} {each.kind}: {line}" for line in each.differences]
    return lines
