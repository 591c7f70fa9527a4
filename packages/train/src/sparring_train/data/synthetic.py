"""A synthetic click log in Criteo format, in memory or as files, with its best reachable AUC."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from sparring.errors import DataError, InvalidArgumentError
from sparring_train.data.batches import concatenate
from sparring_train.data.click_log import ClickLog
from sparring_train.data.click_log_writer import whole_file, write_parquet, write_tsv
from sparring_train.data.planted_model import PlantedModel, SyntheticPart
from sparring_train.quality import CollectedPredictions, auc

__all__ = ["FACTS_NAME", "SyntheticFiles", "best_auc", "generate", "write_synthetic"]

FACTS_NAME = "synthetic.json"
"""The file next to the written logs that says how they were made, and their best AUC."""

_FORMAT_VERSION = 1
_WRITERS = {"tsv": write_tsv, "parquet": write_parquet}


def generate(num_rows: int, model: PlantedModel, part: SyntheticPart = "train") -> ClickLog:
    """The first `num_rows` rows of a part, in memory: some 350 bytes each.

    Raises:
        InvalidArgumentError: `num_rows` is below 1.
    """
    if num_rows < 1:
        raise InvalidArgumentError(f"num_rows: found {num_rows}, must be at least 1")
    return concatenate(list(model.chunks(num_rows, part)))


def best_auc(log: ClickLog) -> float:
    """The AUC of the true probabilities: what the best of all models reaches on these labels.

    NaN if all labels are the same. A model may exceed it by chance, by less than the spread of
    an AUC measured on so few rows.
    """
    return auc(log.probabilities, log.labels)


@dataclass(frozen=True, slots=True)
class SyntheticFiles:
    """Two logs on disk, drawn from one planted model."""

    train_path: Path
    test_path: Path
    best_auc: float
    """On the labels of the test log."""


def write_synthetic(
    folder: str | PathLike[str],
    model: PlantedModel,
    *,
    num_train: int,
    num_test: int,
    file_format: Literal["tsv", "parquet"] = "tsv",
) -> SyntheticFiles:
    """Writes ``train.tsv`` and ``test.tsv`` (or ``.parquet``), and `FACTS_NAME` next to them.

    A folder that already holds exactly these logs is used as it is. Chunks are written as they
    are drawn, in bounded memory.

    Args:
        folder: made if it is missing.
        model: what to draw from.
        num_train: rows of the training log, from 1.
        num_test: rows of the test log, from 1.
        file_format: ``tsv`` or ``parquet``.

    Raises:
        DataError: the folder cannot be written.
        InvalidArgumentError: an argument is out of range.
    """
    if file_format not in _WRITERS:
        raise InvalidArgumentError(
            f"file_format: found {file_format!r}, must be one of {', '.join(_WRITERS)}"
        )
    for what, value in (("num_train", num_train), ("num_test", num_test)):
        if value < 1:
            raise InvalidArgumentError(f"{what}: found {value}, must be at least 1")
    folder = Path(folder)
    facts: dict[str, Any] = {
        "format_version": _FORMAT_VERSION,
        "model": model.options,
        "num_train": num_train,
        "num_test": num_test,
        "file_format": file_format,
    }
    paths = {part: folder / f"{part}.{file_format}" for part in ("train", "test")}
    known = _read_facts(folder / FACTS_NAME)
    is_reusable = all(path.is_file() for path in paths.values()) and known == facts | {
        "best_auc": known.get("best_auc")
    }
    if not is_reusable:
        try:
            known = _write(folder, model, facts, paths)
        except OSError as error:
            raise DataError(
                f"{folder}: the synthetic log cannot be written: {error}", path=str(folder)
            ) from error
    return SyntheticFiles(paths["train"], paths["test"], float(known["best_auc"]))


def _write(
    folder: Path, model: PlantedModel, facts: dict[str, Any], paths: dict[str, Path]
) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    # While logs and facts do not belong together, there are no facts.
    (folder / FACTS_NAME).unlink(missing_ok=True)
    write = _WRITERS[facts["file_format"]]
    write(paths["train"], model.chunks(facts["num_train"], "train"))
    best = CollectedPredictions()
    write(paths["test"], _collecting(model.chunks(facts["num_test"], "test"), best))
    facts = facts | {"best_auc": best.auc()}
    with whole_file(folder / FACTS_NAME) as temporary:
        temporary.write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    return facts


def _collecting(chunks: Iterator[ClickLog], into: CollectedPredictions) -> Iterator[ClickLog]:
    for chunk in chunks:
        into.update(chunk.probabilities, chunk.labels)
        yield chunk


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}  # Without readable facts the logs are written again.
    return facts if isinstance(facts, dict) else {}
