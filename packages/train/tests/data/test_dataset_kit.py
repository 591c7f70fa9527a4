"""Built-in kinds of data pass the kit, and the kit detects violations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring_testing import DatasetRequest, DatasetTests
from sparring_train.columns import ColumnBatch
from sparring_train.config.sections.data import SyntheticCriteoData
from sparring_train.config.sections.table import TableData
from sparring_train.data.clicks import SyntheticClickDataset
from sparring_train.data.dataset import OpenRequest
from sparring_train.data.planted_model import PlantedModel
from sparring_train.data.table.dataset import open_table

from .criteo_files import click_section, write_synthetic
from .table.table_files import click_log, section, write_files


def opened(data: Any, request: DatasetRequest) -> Any:
    return open_table(data, OpenRequest(request.seed, "binary", request.rank, request.world_size))


class TestParquet(DatasetTests):
    @pytest.fixture
    def open_dataset(self, tmp_path: Path) -> Any:
        write_files(tmp_path, click_log(250))
        return lambda request: opened(section(tmp_path / "log.parquet"), request)

    @pytest.fixture
    def num_examples(self) -> int:
        return 250


class TestParquetWithValidation(DatasetTests):
    @pytest.fixture
    def open_dataset(self, tmp_path: Path) -> Any:
        write_files(tmp_path, click_log(250))
        data = section(tmp_path / "log.parquet", time="at", validation={"time": 0.2})
        return lambda request: opened(data, request)

    @pytest.fixture
    def num_examples(self) -> int:
        return 250

    @pytest.fixture
    def has_validation(self) -> bool:
        return True


class TestCsv(DatasetTests):
    @pytest.fixture
    def open_dataset(self, tmp_path: Path) -> Any:
        write_files(tmp_path, click_log(250))
        return lambda request: opened(section(tmp_path / "log.csv"), request)

    @pytest.fixture
    def num_examples(self) -> int:
        return 250


class TestCsvWithValidation(DatasetTests):
    @pytest.fixture
    def open_dataset(self, tmp_path: Path) -> Any:
        write_files(tmp_path, click_log(250))
        data = section(tmp_path / "log.csv", validation={"fraction": 0.2})
        return lambda request: opened(data, request)

    @pytest.fixture
    def num_examples(self) -> int:
        return 250

    @pytest.fixture
    def has_validation(self) -> bool:
        return True


class TestRatings(DatasetTests):
    @pytest.fixture
    def open_dataset(self, tmp_path: Path) -> Any:
        path = tmp_path / "ratings.csv"
        rows = [f"{n % 17},{n % 23},{n % 9 / 2 + 0.5},{n}" for n in range(200)]
        path.write_text("\n".join(["user,item,rating,timestamp", *rows]) + "\n")
        data = TableData.model_validate(
            {
                "kind": "table",
                "path": str(path),
                "label": "rating",
                "categorical": ["user", "item"],
                "required": ["user", "item"],
                "split": {"exact_fraction": 0.1},
                "validation": {"exact_fraction": 0.2},
                "batch_size": 64,
            }
        )
        return lambda request: open_table(data, OpenRequest(request.seed, "number"))

    @pytest.fixture
    def num_examples(self) -> int:
        return 200

    @pytest.fixture
    def has_validation(self) -> bool:
        return True


class TestSyntheticClicks(DatasetTests):
    @pytest.fixture
    def open_dataset(self) -> Any:
        data = SyntheticCriteoData(
            kind="synthetic_criteo",
            samples=200,
            test_samples=50,
            validation_samples=40,
            batch_size=64,
            max_ids=40,
        )
        return lambda request: SyntheticClickDataset(data, OpenRequest(request.seed, "binary"))

    @pytest.fixture
    def num_examples(self) -> int:
        return 290

    @pytest.fixture
    def has_validation(self) -> bool:
        return True


class TestClickFiles(DatasetTests):
    @pytest.fixture
    def open_dataset(self, tmp_path: Path) -> Any:
        path, _ = write_synthetic(tmp_path, PlantedModel(seed=1, max_ids=40), 300, 1)
        section = click_section(path, validation={"fraction": 0.2}, batch_size=64)
        return lambda request: opened(TableData.model_validate(section), request)

    @pytest.fixture
    def num_examples(self) -> int:
        return 300

    @pytest.fixture
    def has_validation(self) -> bool:
        return True


class _Broken:
    """A data set that breaks one guarantee."""

    def __init__(self, data: Any, promise: str, request: DatasetRequest) -> None:
        self._data, self._promise, self._request = data, promise, request
        self._random = np.random.default_rng()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        for number, batch in enumerate(self._data.batches(epoch)):
            changed = batch
            if self._promise == "once" and number == 0:
                changed = ColumnBatch.joined([batch, batch.take(slice(0, 1))])
                changed = replace(changed, total=len(changed))
            elif self._promise == "epochs" and epoch == 1 and number == 0:
                changed = replace(batch, numbers=batch.numbers + 1)
            elif self._promise == "seed":
                changed = batch.take(self._random.permutation(len(batch)))
            elif self._promise == "ranks" and self._request.rank == 1:
                changed = batch.take(slice(0, len(batch) // 2))
            elif self._promise == "schema":
                changed = replace(batch, numbers=batch.numbers * np.float32("nan"))
            yield changed
        if self._promise == "steps":
            yield batch.take(slice(0, 0))


BREAKS = {
    "once": lambda kit, at: kit.test_every_example_occurs_once(at, 250, False),
    "epochs": lambda kit, at: kit.test_every_epoch_has_the_same_examples(at),
    "seed": lambda kit, at: kit.test_the_seed_repeats_every_order(at),
    "ranks": lambda kit, at: kit.test_a_step_has_the_same_examples_at_every_number_of_ranks(
        at, 2, False
    ),
    "schema": lambda kit, at: kit.test_batches_match_the_schema(at, False),
    "steps": lambda kit, at: kit.test_steps_per_epoch_is_the_number_of_batches(at),
}


@pytest.mark.parametrize("promise", BREAKS)
def test_the_kit_detects_a_broken_guarantee(promise: str, tmp_path: Path) -> None:
    write_files(tmp_path, click_log(250))

    def open_broken(request: DatasetRequest) -> Any:
        return _Broken(opened(section(tmp_path / "log.parquet"), request), promise, request)

    with pytest.raises(AssertionError):
        BREAKS[promise](DatasetTests(), open_broken)
