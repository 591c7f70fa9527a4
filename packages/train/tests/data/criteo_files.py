"""Click logs in Criteo format for tests, and a slow reader of them that is plainly right."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparring_train.data.batches import ClickBatch
from sparring_train.data.criteo_format import COLUMNS

__all__ = ["Refused", "line", "parse_slowly", "write_lines"]


@dataclass(frozen=True)
class Refused:
    row: int
    column: str | None


def line(label: object = 0, integers: object = 7, ids: str = "0000000a", **changes: str) -> str:
    """One line; `changes` maps names of columns to what stands there instead."""
    fields = [str(label)] + [str(integers)] * 13 + [ids] * 26
    for name, text in changes.items():
        fields[COLUMNS.index(name)] = text
    return "\t".join(fields)


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("".join(each + "\n" for each in lines), newline="")
    return path


def parse_slowly(text: bytes) -> ClickBatch | Refused:
    """Line by line and field by field."""
    dense, ids, labels = [], [], []
    lines = text.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for row, content in enumerate(lines, 1):
        fields = content.removesuffix(b"\r").split(b"\t")
        if len(fields) < 40:
            return Refused(row, "label" if fields == [b""] else COLUMNS[len(fields)])
        if len(fields) > 40:
            return Refused(row, None)
        for name, field in zip(COLUMNS, fields, strict=True):
            if not _is_right(name, field):
                return Refused(row, name)
        labels.append(float(fields[0]))
        dense.append([math.log1p(max(int(field or 0), 0)) for field in fields[1:14]])
        ids.append([int(field, 16) if field else -1 - f for f, field in enumerate(fields[14:])])
    return ClickBatch(
        np.array(dense, np.float32).reshape(-1, 13),
        np.array(ids, np.int64).reshape(-1, 26),
        np.array(labels, np.float32),
    )


def _is_right(name: str, field: bytes) -> bool:
    if name == "label":
        return bool(re.fullmatch(rb"-?\d+", field)) and int(field) in (0, 1)
    if not field:
        return True
    if name.startswith("int"):
        return bool(re.fullmatch(rb"-?\d+", field)) and -(2**63) <= int(field) < 2**63
    return bool(re.fullmatch(rb"[0-9a-fA-F]{1,8}", field))
