"""Click logs in Criteo format for tests, and the section that reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import csv, parquet

from sparring_train.config.reading.loader import load_config
from sparring_train.data.batches import concatenate
from sparring_train.data.click_log import ClickLog
from sparring_train.data.criteo_format import COLUMNS
from sparring_train.data.planted_model import PlantedModel, SyntheticPart

__all__ = ["click_section", "synthetic_log", "write_synthetic"]

_CONFIG = Path(__file__).parents[4] / "configs/criteo.yaml"


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


def click_section(path: Path, **keys: Any) -> dict[str, Any]:
    """The section `data` of `configs/criteo.yaml` for another path, with other values for some keys."""
    data = load_config(_CONFIG).data.model_dump(mode="json")
    return {**data, "path": str(path), **keys}
