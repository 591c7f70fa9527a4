"""Table of the choices of a random file, with the combinations that make no sense."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping

NONE = "none"
"""The column does not exist, or the choice does not apply to this container."""

DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "container": (
        "csv", "tsv", "txt", "data", "dat", "inter", "csv.gz", "folder", "lines", "lines.csv",
        "jsonl", "json.gz", "parquet",
    ),
    "delimiter": (NONE, ",", "tab", ";", "|", "::", "space"),
    "quotes": (NONE, "minimal", "all"),
    "header": (NONE, "present", "absent", "typed"),
    "encoding": (NONE, "utf-8", "utf-8-sig", "latin-1", "utf-16"),
    "first_line": (NONE, "sep="),
    "line_end": (NONE, "lf", "crlf"),
    "spaces": (NONE, "around"),
    "ending": ("newline", "no newline", "blank lines", "comment", "total"),
    "locale": (NONE, "us", "de"),
    "missing": (NONE, "empty", "NA", "NULL", "\\N", "-", "nan", "null"),
    "label": (NONE, "0/1", "True/False", "true/false", "yes/no", "Y/N", "1..5", "0.5..5"),
    "label_name": (NONE, "usual", "unclear"),
    "user": (
        "small integers", "large integers", "strings", "leading zeros", "uuid", "hex", "beyond 64 bits",
    ),
    "user_name": ("usual", "rare"),
    "item": (
        "small integers", "large integers", "strings", "leading zeros", "uuid", "hex", "beyond 64 bits",
    ),
    "item_name": ("usual", "rare"),
    "time": (
        NONE, "seconds", "milliseconds", "microseconds", "nanoseconds", "float seconds", "iso", "iso T",
        "iso Z", "iso offset", "iso offsets", "12 hours", "dd.mm.yyyy", "dd.mm.yyyy hh:mm",
        "mm/dd/yyyy", "ambiguous dd/mm/yyyy", "date", "compact date",
        "native nanoseconds", "native microseconds", "native utc", "native date",
    ),
    "time_name": ("snake", "camel", "lower"),
    "number": (
        NONE, "small", "decimal", "heavy tail", "rarely decimal", "thousands", "whole thousands",
        "ambiguous whole thousands", "currency", "percent",
    ),
    "second_number": (NONE, "small", "decimal", "heavy tail", "thousands", "currency", "percent"),
    "category": (
        NONE, "accents", "strings with spaces", "codes", "integer codes", "leading zeros",
        "floats of integers", "embedded",
    ),
    "list": (
        NONE, "json integers", "json strings", "python strings", "^", "|", ", ", "space", "native",
    ),
    "nuisance": (
        NONE, "row number", "unique id", "constant", "quantity", "flag", "leak number", "leak binary",
        "leak without a name",
    ),
    "second_nuisance": (NONE, "row number", "constant", "quantity", "leak number"),
}  # fmt: skip
"""Values of each dimension, in the order in which they are chosen."""

WEIGHTS: Mapping[tuple[str, str], float] = {
    ("container", "csv"): 5,
    ("container", "txt"): 2,
    ("container", "jsonl"): 2,
    ("container", "parquet"): 2,
    ("header", "present"): 7,
    ("label_name", "usual"): 8,
    ("label", "0/1"): 4,
    ("ending", "newline"): 6,
    ("spaces", NONE): 3,
    ("first_line", NONE): 5,
    ("encoding", "utf-8"): 4,
    ("user_name", "usual"): 3,
    ("item_name", "usual"): 3,
    ("user", "small integers"): 3,
    ("item", "small integers"): 3,
}
"""Relative frequencies other than 1."""

TEXT = ("csv", "tsv", "txt", "data", "dat", "inter", "csv.gz", "folder")
"""Containers with delimited text."""

LINES = ("lines", "lines.csv")
JSON = ("jsonl", "json.gz")

DELIMITERS = {
    "csv": (",", ";", "tab", "|"),
    "tsv": ("tab",),
    "txt": (",", "tab", ";", "|", "::", "space"),
    "data": ("tab", "space", ","),
    "dat": ("::", "tab", "|"),
    "inter": ("tab",),
    "csv.gz": (",", ";"),
    "folder": (",", ";", "|"),
}
CHARACTERS = {"tab": "\t", "space": " "}
"""Delimiters that have a name in the table."""

CONTENTS = {
    ("locale", "de"): ",",
    ("number", "thousands"): ",",
    ("number", "whole thousands"): ",",
    ("number", "ambiguous whole thousands"): ",",
    ("number", "currency"): ", ",
    ("second_number", "thousands"): ",",
    ("second_number", "currency"): ", ",
    ("category", "accents"): " ",
    ("category", "strings with spaces"): " ",
    ("category", "embedded"): ',;|\t" ',
    ("list", "json integers"): ", ",
    ("list", "json strings"): ", ",
    ("list", "python strings"): ", ",
    ("list", "|"): "|",
    ("list", ", "): ", ",
    ("list", "space"): " ",
    ("time", "iso"): " ",
    ("time", "12 hours"): " ",
    ("time", "dd.mm.yyyy hh:mm"): " ",
}
"""Characters in the cells of a choice that need quotes if they are the delimiter."""

PLAIN_NUMBERS = (NONE, "small", "decimal", "heavy tail", "rarely decimal")
NATIVE_TIMES = (
    NONE,
    "seconds",
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "float seconds",
    "iso Z",
)
WITH_COLUMNS = (
    "label",
    "time",
    "number",
    "second_number",
    "category",
    "list",
    "nuisance",
    "second_nuisance",
)
DIALECT = ("delimiter", "quotes", "header", "first_line", "spaces", "locale", "missing")
LOCAL_NUMBERS = ("thousands", "whole thousands", "ambiguous whole thousands")

Chosen = Mapping[str, str]

EXCLUSIONS: Mapping[str, Callable[[Chosen], bool]] = {
    "only delimited text has a dialect, a locale and texts of missing values": lambda c: (
        c["container"] not in TEXT and any(c[each] not in ("", NONE) for each in DIALECT)
    ),
    "delimited text has a delimiter, a header or not, and a text of missing values": lambda c: (
        c["container"] in TEXT and NONE in (c["delimiter"], c["header"], c["missing"])
    ),
    "the container limits the delimiter": lambda c: (
        c["container"] in TEXT
        and c["delimiter"] not in ("", *DELIMITERS[c["container"]])
    ),
    "only RecBole has a typed header": lambda c: (
        c["header"] != "" and (c["header"] == "typed") != (c["container"] == "inter")
    ),
    "no parser reads quotes after two characters, after spaces or in RecBole's files": lambda c: (
        c["quotes"] not in ("", NONE)
        and (c["delimiter"] == "::" or c["container"] == "inter" or c["spaces"] == "around")
    ),
    "cells with the delimiter need quotes": lambda c: (
        c["quotes"] == NONE
        and any(
            CHARACTERS.get(c["delimiter"], c["delimiter"] or "\0") in CONTENTS.get(each, "")
            for each in c.items()
        )
    ),
    "cells with delimiters and quotes need quotes, which JSON and Parquet do not have": lambda c: (
        c["category"] == "embedded" and c["quotes"] == NONE
    ),
    "the container limits the encoding": lambda c: (
        c["encoding"] != ""
        and (
            (c["encoding"] == NONE) != (c["container"] == "parquet")
            or (c["container"] in (*JSON, *LINES, "inter") and not c["encoding"].startswith("utf-8"))
        )
    ),
    "Latin-1 without an accent is ASCII": lambda c: (
        c["encoding"] == "latin-1"
        and (
            c["category"] not in ("", "accents")
            or (c["delimiter"] == "space" and c["quotes"] == NONE)
        )
    ),
    "Parquet has no lines": lambda c: (
        c["container"] == "parquet"
        and (c["line_end"] not in ("", NONE) or c["ending"] not in ("", "newline"))
    ),
    "text has ends of lines": lambda c: c["container"] != "parquet" and c["line_end"] == NONE,
    "JSON and lines of items have no comments": lambda c: (
        c["container"] in (*JSON, *LINES) and c["ending"] in ("comment", "total")
    ),
    "spreadsheets write sep= before a header": lambda c: (
        c["first_line"] == "sep="
        and (
            c["container"] not in ("csv", "txt")
            or c["delimiter"] not in (",", ";", "|", "tab")
            or c["header"] != "present"
        )
    ),
    "spaces cannot be around a space, and RecBole writes none": lambda c: (
        c["spaces"] == "around" and (c["delimiter"] == "space" or c["container"] == "inter")
    ),
    "two spaces are no missing value": lambda c: c["delimiter"] == "space" and c["missing"] == "empty",
    "separators of thousands belong to a locale": lambda c: (
        c["locale"] == NONE and (c["number"] in LOCAL_NUMBERS or c["second_number"] in LOCAL_NUMBERS)
    ),
    "1.234 is no number of thousands in the de locale": lambda c: (
        c["locale"] == "de" and c["number"].endswith("whole thousands")
    ),
    "RecBole, JSON and Parquet have plain numbers": lambda c: (
        c["container"] in ("inter", "parquet", *JSON)
        and (
            c["locale"] not in ("", NONE)
            or any(c[each] not in ("", *PLAIN_NUMBERS) for each in ("number", "second_number"))
        )
    ),
    "programs write float seconds with a point": lambda c: (
        c["locale"] == "de" and c["time"] == "float seconds"
    ),
    "only Parquet has types of times": lambda c: (
        c["container"] != "parquet" and c["time"].startswith("native")
    ),
    "Parquet has typed times": lambda c: (
        c["container"] == "parquet"
        and c["time"] != ""
        and c["time"] not in NATIVE_TIMES
        and not c["time"].startswith("native")
    ),
    "RecBole's times are seconds": lambda c: (
        c["container"] == "inter" and c["time"] not in ("", NONE, "seconds", "float seconds")
    ),
    "only JSON and Parquet have lists": lambda c: (
        c["list"] == "native" and c["container"] not in (*JSON, "parquet")
    ),
    "JSON and Parquet have lists, or texts with |": lambda c: (
        c["container"] in (*JSON, "parquet") and c["list"] not in ("", NONE, "native", "|")
    ),
    "RecBole's lists have spaces, and its columns are typed": lambda c: (
        c["container"] == "inter"
        and (
            c["list"] not in ("", NONE, "space")
            or c["label"] in ("True/False", "true/false", "yes/no", "Y/N")
            or c["category"] == "floats of integers"
            or c["header"] not in ("", "typed")
        )
    ),
    "lines of items have no other columns": lambda c: (
        c["container"] in LINES
        and (
            any(c[each] not in ("", NONE) for each in WITH_COLUMNS)
            or c["user"] not in ("", "small integers", "strings")
            or c["item"] not in ("", "small integers", "strings")
        )
    ),
    "without a label, nothing depends on it, and users and items have usual names": lambda c: (
        c["label"] == NONE
        and (
            c["nuisance"].startswith(("leak", "flag"))
            or c["second_nuisance"].startswith("leak")
            or c["label_name"] not in ("", NONE)
            or "rare" in (c["user_name"], c["item_name"])
        )
    ),
    "a label has a name": lambda c: c["label"] not in ("", NONE) and c["label_name"] == NONE,
    "an outcome depends on a click": lambda c: (
        c["label"].endswith("5")
        and (c["nuisance"].startswith("leak") or c["second_nuisance"].startswith("leak"))
    ),
    "the two columns of nuisance are of different kinds": lambda c: (
        c["nuisance"] == c["second_nuisance"] and c["nuisance"] not in ("", NONE)
    ),
    "a file has at most one second outcome": lambda c: (
        c["nuisance"].startswith("leak") and c["second_nuisance"].startswith("leak")
    ),
    "JSON writes integers without a fraction": lambda c: (
        c["category"] == "floats of integers" and c["container"] in JSON
    ),
}  # fmt: skip
"""Combinations that make no sense; a dimension that is not chosen yet has the value ""."""


def choose(dice: random.Random) -> dict[str, str]:
    """Chooses a value of each dimension, without excluded combinations."""
    chosen: dict[str, str] = defaultdict(str)
    for name, values in DIMENSIONS.items():
        possible = [each for each in values if not is_excluded({**chosen, name: each})]
        if not possible:
            raise AssertionError(f"no value of {name} is possible after {dict(chosen)}")
        weights = [WEIGHTS.get((name, each), 1.0) for each in possible]
        chosen[name] = dice.choices(possible, weights)[0]
    return dict(chosen)


def is_excluded(chosen: Chosen) -> bool:
    known = defaultdict(str, chosen)
    return any(rule(known) for rule in EXCLUSIONS.values())


DOUBTS: Mapping[str, Callable[[Chosen], bool]] = {
    "no header": lambda c: c["header"] == "absent",
    "the name of the label says nothing": lambda c: c["label_name"] == "unclear",
    "two columns could be the label": lambda c: c["nuisance"] == "leak binary",
    "the day and the month could be exchanged": lambda c: c["time"].startswith("ambiguous"),
    "2,612 could have a decimal comma": lambda c: c["number"].startswith("ambiguous"),
    "a last line with totals": lambda c: c["ending"] == "total",
}
"""Reasons for which stopping with a clear message is right, too."""


def doubts_of(chosen: Chosen) -> tuple[str, ...]:
    return tuple(reason for reason, rule in DOUBTS.items() if rule(chosen))
