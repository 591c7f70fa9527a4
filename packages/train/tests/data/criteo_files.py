"""Click logs in Criteo format for tests, and a slow reader of them that is plainly right."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import csv, parquet

from sparring_train.data.batches import ClickBatch, concatenate
from sparring_train.data.click_log import ClickLog
from sparring_train.data.criteo_format import COLUMNS
from sparring_train.data.planted_model import PlantedModel, SyntheticPart

__all__ = ["Refused", "line", "parse_slowly", "synthetic_log", "write_lines", "write_synthetic"]


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


def synthetic_log(num_rows: int, model: PlantedModel, part: SyntheticPart = "train") -> ClickLog:
    """The first rows of a part, in memory."""
    return concatenate(list(model.chunks(num_rows, part)))


def write_synthetic(
    folder: Path, model: PlantedModel, num_train: int, num_test: int, suffix: str = "tsv"
) -> tuple[Path, Path]:
    """Writes the first rows of both parts as files of this suffix, and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"train.{suffix}", folder / f"test.{suffix}"
    _write_log(paths[0], synthetic_log(num_train, model, "train"))
    _write_log(paths[1], synthetic_log(num_test, model, "test"))
    return paths


def _write_log(path: Path, log: ClickLog) -> None:
    integers = zip(log.integers.T, log.is_missing_integer.T, strict=True)
    texts = [np.array([f"{each & 0xFFFFFFFF:08x}" for each in ids]) for ids in log.ids.T.tolist()]
    ids = zip(texts, log.is_missing_id.T, strict=True)
    columns = [pyarrow.array(values, mask=is_missing) for values, is_missing in [*integers, *ids]]
    labels = pyarrow.array(log.labels.astype(np.int8))
    table = pyarrow.table([labels, *columns], names=list(COLUMNS))
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        layout = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        csv.write_csv(table, path, layout)


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
