"""Runs on files and on streams with the same events, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from sparring import list_snapshots, make_plugin_manager, open_snapshot
from sparring_train.config.reading.loader import parse_config
from sparring_train.pytorch.trainer import train
from sparring_train.run.replay import list_differences
from sparring_train.run.result import SilentProgress, TrainResult

from ..data.stream.stream_files import WritableFolder

__all__ = ["CONFIG", "NUM_EVENTS", "Events", "Quiet"]

CONFIG = """
seed: 3
threads: 1
data: {label: clicked, categorical: [user, item], types: {user: string}, numeric: [price], batch_size: 64}
model: {kind: dlrm, embedding_dim: 4, bottom_mlp: [8], top_mlp: [8]}
storage: {backend: memory}
"""
NUM_EVENTS, NUM_TESTS = 400, 60


def log() -> Any:
    random = np.random.default_rng(5)
    count = NUM_EVENTS + NUM_TESTS
    users, items = random.integers(0, 50, count), random.integers(0, 80, count)
    return pyarrow.table(
        {
            "user": [f"user {n}" for n in users],
            "item": items,
            "price": random.normal(size=count),
            "clicked": (users + items + random.integers(0, 9, count)) % 2,
            "part": ["train"] * NUM_EVENTS + ["test"] * NUM_TESTS,
        }
    )


class Events:
    """A folder with files for a run on a table, and the same events for streams."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        whole = log()
        self.train, self.test = whole.slice(0, NUM_EVENTS), whole.slice(NUM_EVENTS)
        parquet.write_table(whole, folder / "log.parquet", row_group_size=100)
        parquet.write_table(self.test, folder / "test.parquet")

    def run(self, url: str, snapshots: str, *overrides: str) -> TrainResult:
        return train(self.config(url, snapshots, *overrides), make_plugin_manager(), Quiet())

    def config(self, url: str, snapshots: str, *overrides: str) -> Any:
        return parse_config(CONFIG, self.words(url, snapshots, *overrides))

    def words(self, url: str, snapshots: str, *overrides: str) -> list[str]:
        """Overrides for a run on a stream, or with an empty URL on files. Steps end at 64 events."""
        kind = [
            "data.kind=stream",
            f"data.url={url}",
            "data.stop_at_end=true",
            "data.max_milliseconds=20000",
            f"data.test_path={self.folder / 'test.parquet'}",
        ]
        if not url:
            kind = [
                "data.kind=table",
                f"data.path={self.folder / 'log.parquet'}",
                "data.split={column: part}",
                "data.shuffle=false",
            ]
        place = f"snapshots.url={self.folder / snapshots}"
        return [*kind, place, *overrides]

    def write_folder(self, partitions: int = 1) -> str:
        names = [] if partitions == 1 else [str(each) for each in range(partitions)]
        stream = WritableFolder(self.folder / "events", names, is_numbered=True)
        for number, name in enumerate(stream.partitions):
            mine = self.train.slice(number * NUM_EVENTS // partitions, NUM_EVENTS // partitions)
            for begin in range(0, mine.num_rows, 90):
                stream.append_table(name, mine.slice(begin, 90))
        return str(stream.path)

    def newest(self, snapshots: str) -> Any:
        return open_snapshot(list_snapshots(str(self.folder / snapshots))[-1])

    def check_same_bits(self, one: str, other: str) -> None:
        """Raises unless rows, parameters and optimizer state of two runs are equal."""
        differences = list_differences(self.newest(one), self.newest(other))
        assert [each for each in differences if each != "state origins"] == []


class Quiet(SilentProgress):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, message: str) -> None:
        self.messages.append(message)
