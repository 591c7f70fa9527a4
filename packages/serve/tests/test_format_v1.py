"""Serving snapshots and saves of a parameter service that release 0.1 wrote are read by every release.

Release 0.1 wrote `format_v1`: a full serving snapshot with a quantized table, a delta over it, and a save
of a parameter service.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import TableConfig
from sparring.adapter import initial_rows
from sparring_serve import (
    LookupClient,
    LookupServer,
    ParameterClient,
    ServerConfig,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
    open_parameter_server,
)
from sparring_testing.processes.table_steps import choose_method, declare_tables, open_tables

FOLDER = Path(__file__).parent / "format_v1"
TABLES = (TableConfig("item", 4, seed=3), TableConfig("user", 8))
KEYS = np.array([-(2**63), -1, 0, 7, 2**63 - 1])
CHANGED, ERASED, ADDED = KEYS[1:2], KEYS[2:3], np.array([8])
GRADIENTS = {"item": (KEYS, np.ones((len(KEYS), 4), np.float32))}
ONE = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))


def rows_of(keys: np.ndarray, table: TableConfig, step: int) -> np.ndarray:
    rows = np.full((len(keys), table.dim), step, np.float32)
    rows[:, 0] = keys % 97
    return rows


def learning(folder: Path, **parameters: Any) -> ServingConfig:
    item = {"dim": 4, "update_method": "adagrad", "hyper": {"lr": 0.5}, "seed": 3}
    given = {"tables": {"item": item}, "folders": [str(folder)], "push_log_bytes": 0, **parameters}
    return ServingConfig.model_validate({"parameters": given})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(FOLDER, tmp_path / "format_v1"))


def test_a_delta_over_a_full_serving_snapshot_is_served(folder: Path) -> None:
    pytest.importorskip("sparring_packed", reason="needs sparring-packed")
    from sparring_serve.tables.packed import open_packed_tables

    config = ServingConfig(snapshots=str(folder / "served"), server=ServerConfig(poll_seconds=3600))
    asked = np.concatenate([KEYS, ADDED, [99]])
    with (
        LookupServer(open_packed_tables(config, ONE), config, ONE, "127.0.0.1:0") as server,
        LookupClient(server.address) as client,
    ):
        found = client.pull({table.name: asked for table in TABLES})
    for table in TABLES:
        expected = rows_of(asked, table, 1)
        is_new = np.isin(asked, [CHANGED[0], ADDED[0]])
        expected[is_new] = rows_of(asked[is_new], table, 2)
        has_no_row = np.isin(asked, [ERASED[0], 99])
        expected[has_no_row] = initial_rows(asked[has_no_row], table)
        # Rows of 8 bits are within half of a 255th of their range.
        atol = 0.0 if table.name == "item" else 97 / 255 / 2
        np.testing.assert_allclose(found.rows[table.name], expected, rtol=0.0, atol=atol)


def test_a_service_starts_with_a_save_of_release_0_1_and_continues(folder: Path) -> None:
    config = learning(folder / "saved", start="newest")
    with open_tables() as expected:
        declare_tables(expected, TABLES[:1], method="adagrad", lr=0.5)
        for step in (1, 2):
            expected.resources.accumulate_by_key("item", *GRADIENTS["item"])
            expected.apply_methods(choose_method(expected, "adagrad", step, lr=0.5))
        rows = expected.lookup("item", KEYS, is_registered=False)
        with (
            open_parameter_server(config, address="127.0.0.1:0") as server,
            ParameterClient(server.address) as client,
        ):
            client.push(GRADIENTS, wait="applied")
            found = client.pull({"item": KEYS}).rows["item"]
    assert found.tobytes() == rows.rows[rows.inverse].tobytes()
