"""Scheduled saves of a service: what they contain, which are kept, and what happens if they fail."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from sparring import list_snapshots, open_snapshot
from sparring_cli import verify_snapshot
from sparring_serve import (
    ParameterClient,
    ParametersConfig,
    ServingConfig,
    open_parameter_server,
)

from .conftest import IDS, TABLES, MakeShards, Shards, made_gradients


def push(shards: Shards, seed: int) -> None:
    with shards.client() as client:
        client.push(made_gradients(seed), wait="applied")


def names(folder: Path) -> list[str]:
    return [each.rpartition("/")[2] for each in list_snapshots(folder)]


def count(shards: Shards, result: str) -> float:
    return shards.services["shard:0"].lookups.metrics.value("saves_total", result=result)


@pytest.fixture
def make_saving(make_shards: MakeShards, tmp_path: Path) -> Any:
    def make(num_shards: int, **save: Any) -> Shards:
        folders = [str(tmp_path / "saved")]
        return make_shards(num_shards, folders=folders, save={"every_seconds": 3600, **save})

    return make


def test_a_scheduled_save_contains_all_shards_and_old_ones_are_removed(
    make_saving: Any, make_shards: MakeShards, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    shards = make_saving(2, keep=2)
    assert shards.services["shard:1"].scheduled is None
    saves = shards.services["shard:0"].scheduled
    exported = shards.services["shard:0"].lookups.metrics.registry.families()
    failed = [
        each for family in exported if "saves_total" in family.name for each in family.samples
    ]
    assert [(each.labels["result"], each.value) for each in failed] == [("failed", 0)]
    push(shards, 0)
    saves.save_now()
    first = "step-000000000001.scheduled"
    assert names(folder) == [first]
    snapshot = open_snapshot(folder / first)
    assert snapshot.world_size == 2
    assert not verify_snapshot(snapshot).problems
    expected = shards.rows(IDS)
    saves.save_now()  # nothing was pushed
    assert names(folder) == [first]
    assert (count(shards, "saved"), count(shards, "skipped")) == (1, 1)
    with shards.client() as client:
        client.save("mine")
    for seed in range(1, 5):
        push(shards, seed)
        saves.save_now()
    # The snapshot of a client is never removed.
    assert names(folder) == [
        "mine", "step-000000000004.scheduled", "step-000000000005.scheduled"
    ]  # fmt: skip
    other = make_shards(3, folders=[str(folder)])
    with other.client() as client:
        client.load("mine")
    for name, rows in other.rows(IDS).items():
        assert np.array_equal(rows, expected[name])
    assert shards.services["shard:0"].lookups.metrics.gauges()["save_age_seconds"] < 60


def test_saves_after_the_load_of_an_earlier_snapshot_are_made_and_kept(
    make_saving: Any, tmp_path: Path
) -> None:
    shards = make_saving(1, keep=2)
    saves = shards.services["shard:0"].scheduled
    push(shards, 0)
    with shards.client() as client:
        client.save("mine")
    for seed in range(1, 4):
        push(shards, seed)
        saves.save_now()
    for num_pushes, name in (
        (3, "step-000000000004.scheduled-2"),
        (1, "step-000000000002.scheduled"),
    ):
        with shards.client() as client:
            client.load("mine")
        for seed in range(num_pushes):
            push(shards, 9 + seed)
        saves.save_now()
        assert name in names(tmp_path / "saved")
    assert len(names(tmp_path / "saved")) == 3


def test_a_snapshot_that_servers_start_with_is_kept(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    save = {"every_seconds": 3600, "keep": 2}
    start = "step-000000000001.scheduled"
    shards = make_shards(1, folders=[str(tmp_path / "saved")], save=save, start=start)
    for seed in range(4):
        push(shards, seed)
        shards.services["shard:0"].scheduled.save_now()
    assert len(names(tmp_path / "saved")) == 3
    assert start in names(tmp_path / "saved")


def test_a_failed_save_is_logged_and_counted_and_the_next_one_succeeds(
    make_saving: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = make_saving(2)
    saves = shards.services["shard:0"].scheduled
    push(shards, 0)
    shards.fault = lambda send: "cut" if send.method == "SavePart" else ""
    with caplog.at_level(logging.WARNING, "sparring_serve"):
        saves.save_now()
    [line] = [each.getMessage() for each in caplog.records]
    assert "the scheduled save failed" in line
    assert "shard 2 of 2 at shard:1 failed" in line
    assert "the next one is attempted in 3600 s" in line
    assert count(shards, "failed") == 1
    assert names(tmp_path / "saved") == []
    shards.fault = lambda _: ""
    # Another save is no failure.
    with shards.services["shard:0"]._snapshots._alone("save"):
        saves.save_now()
    assert count(shards, "skipped") == 1
    saves.save_now()
    assert names(tmp_path / "saved") == ["step-000000000001.scheduled"]
    assert count(shards, "failed") == 1


def test_saves_are_made_at_intervals_and_a_restart_continues_exactly(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    config = ServingConfig.model_validate(
        {
            "parameters": {
                "tables": TABLES,
                "folders": [str(saved)],
                "save": {"every_seconds": 0.05, "keep": 2},
            }
        }
    )

    def serve(begin: int, end: int, *, until_saved: bool) -> dict[str, np.ndarray]:
        with (
            open_parameter_server(config, address="127.0.0.1:0") as server,
            ParameterClient(server.address) as client,
        ):
            for seed in range(begin, end):
                client.push(made_gradients(seed), wait="applied", deadline_seconds=60)
            deadline = time.monotonic() + 60
            wanted = f"step-{end:012d}.scheduled"
            while until_saved and wanted not in names(saved) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not until_saved or wanted in names(saved)
            ids = dict.fromkeys(TABLES, IDS)
            return dict(client.pull(ids, deadline_seconds=60).rows)

    serve(0, 3, until_saved=True)
    # The server ends while or shortly before it saves.
    rows = serve(3, 20, until_saved=False)
    again = serve(20, 20, until_saved=False)
    for name, each in rows.items():
        assert np.array_equal(each, again[name])


def test_the_end_of_a_server_cancels_a_save(
    make_saving: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = make_saving(1)
    service = shards.services["shard:0"]
    push(shards, 0)
    started, begin_save = threading.Event(), service.shard.begin_save

    def begin_slowly(*given: Any) -> Any:
        begun = begin_save(*given)
        started.set()
        return begun

    service.shard.begin_save = begin_slowly
    # The writer of the save waits until it is canceled.
    view = "sparring.engine.checkpoint.save_manager.SnapshotJob._run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view, wait_until_failed)
        service.scheduled._config = service.shard.config.model_copy(
            update={"save": service.shard.config.save.model_copy(update={"every_seconds": 0.01})}
        )
        service.scheduled.start()
        assert started.wait(60)
        with caplog.at_level(logging.INFO, "sparring_serve"):
            service.scheduled.close()
    assert not service.scheduled._thread.is_alive()
    assert "canceled, because the server ends" in caplog.text
    assert names(tmp_path / "saved") == []


def wait_until_failed(job: Any) -> None:
    while True:
        job.writer._attempt.check()
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("save", "message"),
    [
        ({"keep": 5}, "keep has no effect without every_seconds"),
        ({"every_seconds": 60, "keep": 1}, "greater than or equal to 2"),
        ({"every_seconds": 0}, "greater than 0"),
    ],
)
def test_a_wrong_schedule_is_rejected(save: dict[str, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ParametersConfig.model_validate({"tables": TABLES, "save": save})
