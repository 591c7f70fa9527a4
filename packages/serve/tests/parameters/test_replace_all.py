"""First rows of a service that learns: all tables are replaced at once, by a snapshot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sparring import TableConfig, open_storage
from sparring.contracts import Columns, SupportsReplaceAll
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_serve import ServingConfig, open_parameter_server

ITEM = TableConfig("item", 4).with_state(4, "adagrad")
TABLES = {
    "item": {"dim": 4, "update_method": "adagrad"},
    "user": {"dim": 2, "update_method": "sgd"},
}


def test_rows_of_all_tables_are_replaced_or_none(tmp_path: Path) -> None:
    parameters = {"tables": TABLES, "folders": [str(tmp_path / "saved")], "start": None}
    config = ServingConfig.model_validate({"parameters": parameters})
    rows = {
        "item": np.arange(20, dtype=np.float32).reshape(5, 4),
        "user": np.ones((3, 2), np.float32),
    }
    with open_parameter_server(config, address="127.0.0.1:0") as server:
        file = tmp_path / "serving.yaml"
        file.write_text(json.dumps({"shards": [[server.address]], "parameters": parameters}))
        options = {"config": str(file), "role": "parameters", "deadline_seconds": 9}
        with open_storage("remote", ITEM, **options) as storage:
            assert isinstance(storage, SupportsReplaceAll)
            assert storage.size == 0
            with pytest.raises(
                InvalidArgumentError, match="found the tables item, but the service has"
            ):
                storage.replace_all({"item": rows["item"]})
            with pytest.raises(InvalidArgumentError):
                storage.replace_all({**rows, "user": np.ones((3, 5), np.float32)})
            assert storage.size == 0
            storage.replace_all(rows)
            assert storage.size == 5
            found = storage.find(np.arange(5), Columns(0, 4))
            assert np.array_equal(found.rows, rows["item"])
        options = {"target": server.address, "role": "parameters", "deadline_seconds": 9}
        with (
            open_storage("remote", ITEM, **options) as storage,
            pytest.raises(UnsupportedError, match="set config=… instead of target"),
        ):
            storage.replace_all(rows)
