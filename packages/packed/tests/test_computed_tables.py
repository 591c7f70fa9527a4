"""Tables that are computed from a training snapshot, in full serving snapshots and deltas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sparring_packed
from sparring import SaveOptions, StepContainer, StorageChoice, TableConfig
from sparring.errors import InvalidArgumentError
from sparring_packed import ComputedTable, WriteOptions


def computed(keys: list[int], value: float) -> WriteOptions:
    rows = np.outer(np.array(keys), np.ones(3)).astype(np.float32) + np.float32(value)
    table = ComputedTable("item", np.array(keys, np.int64), rows)
    # Files of this size contain the rows of a few partitions.
    return WriteOptions(computed={"item.vectors": table}, file_bytes=1 << 16)


def test_a_delta_replaces_all_rows_and_erases_those_of_its_source(tmp_path: Path) -> None:
    keys = list(range(-40, 9000))
    with StepContainer() as container:
        container.declare(TableConfig("item", dim=2), StorageChoice("memory"))
        container.assign("item", keys, np.ones((len(keys), 2)))
        container.save(f"{tmp_path}/run/step-1", options=SaveOptions(is_base=True))
        container.storage("item").erase([-40, 7, 8])
        container.assign("item", [8, 9001], np.ones((2, 2)))
        container.save(f"{tmp_path}/run/step-2", base=f"{tmp_path}/run/step-1")
    served = tmp_path / "served"
    sparring_packed.write(f"{tmp_path}/run/step-1", served / "1", options=computed(keys, 0.5))
    later = [key for key in (*keys, 9001) if key not in {-40, 7}]
    sparring_packed.write(
        f"{tmp_path}/run/step-2", served / "2", base=served / "1", options=computed(later, 2)
    )
    with sparring_packed.open(served / "1") as tables:
        assert tables.lookup("item.vectors", [-40, 7, 9001])[:, 0].tolist() == [-39.5, 7.5, 0]
    with sparring_packed.open(served / "2") as tables:
        found = np.concatenate([each for each, _ in tables.scan("item.vectors")])
        assert sorted(found.tolist()) == later
        assert tables.lookup("item.vectors", [-40, 7, 8, 9001, 0])[:, 2].tolist() == [
            0, 0, 10, 9003, 2,
        ]  # fmt: skip
    with pytest.raises(InvalidArgumentError, match=r"base .* has tables item, item\.vectors"):
        sparring_packed.write(f"{tmp_path}/run/step-2", served / "3", base=served / "1")
    wrong = WriteOptions(computed={"item": computed([1], 0).computed["item.vectors"]})
    with pytest.raises(InvalidArgumentError, match="choose another name than these"):
        sparring_packed.write(f"{tmp_path}/run/step-2", served / "3", options=wrong)
    with pytest.raises(InvalidArgumentError, match=r"expected \(n,\) of int64 and"):
        ComputedTable("item", np.arange(2), np.ones((2, 3)))
