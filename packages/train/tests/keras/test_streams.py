"""TensorFlow trains streams like files, and replays them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed; see nox -s tests")
pyarrow = pytest.importorskip("pyarrow", reason="writes Parquet")

from pyarrow import parquet

from sparring import list_snapshots, make_plugin_manager, open_snapshot
from sparring_cli.application import main
from sparring_train.config.reading.loader import parse_config
from sparring_train.keras.trainer import train
from sparring_train.run.replay import list_differences
from sparring_train.run.result import SilentProgress

from ..data.stream.stream_files import WritableFolder

CONFIG = """
framework: tensorflow
seed: 3
data: {label: clicked, categorical: [user, item], numeric: [price], batch_size: 32}
model: {kind: dlrm, embedding_dim: 4, bottom_mlp: [8], top_mlp: [8]}
storage: {backend: memory}
"""


def test_a_stream_trains_like_files_and_its_replay_is_identical(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    log = pyarrow.table(
        {
            "user": random.integers(0, 20, 120),
            "item": random.integers(0, 30, 120),
            "price": random.normal(size=120),
            "clicked": random.integers(0, 2, 120),
            "part": ["train"] * 100 + ["test"] * 20,
        }
    )
    parquet.write_table(log, tmp_path / "log.parquet")
    stream = WritableFolder(tmp_path / "events", is_numbered=True)
    for begin in (0, 50):
        stream.append_table(".", log.slice(begin, 50))
    files = [
        "data.kind=table", f"data.path={tmp_path / 'log.parquet'}", "data.split={column: part}",
        "data.shuffle=false", f"snapshots.url={tmp_path / 'files'}",
    ]  # fmt: skip
    live = [
        "data.kind=stream", f"data.url={stream.path}", "data.stop_at_end=true",
        "data.max_milliseconds=20000", f"snapshots.url={tmp_path / 'live'}",
    ]  # fmt: skip
    for words in (files, live):
        keras.backend.clear_session(free_memory=False)  # names of layers as in a new process
        train(parse_config(CONFIG, words), make_plugin_manager(), SilentProgress())
    newest = [open_snapshot(list_snapshots(str(tmp_path / each))[-1]) for each in ("files", "live")]
    assert newest[1].step == 4
    assert list_differences(newest[0], newest[1]) == []
    (tmp_path / "run.yaml").write_text(CONFIG)
    keras.backend.clear_session(free_memory=False)
    assert main(["replay", str(tmp_path / "run.yaml"), *live]) == 0
