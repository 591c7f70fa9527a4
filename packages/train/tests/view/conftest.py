"""Snapshots for the page: a full one, and a delta over it, with scores and last steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sparring import ScanChunk, SnapshotWriter, TableConfig, TableDescription, make_plugin_manager
from sparring_train.view.answers import LookView, open_source
from sparring_train.view.server import LookServer

NUM_ROWS = 20_000
ERASED, MOVED = np.arange(50), np.arange(50, 150)
CREATED = np.arange(NUM_ROWS, NUM_ROWS + 30)
STEPS = 100
"""Step of the delta; row k was last trained in step k % 100."""

USER = TableDescription.of(TableConfig("user", dim=4), has_scores=True)
ITEM = TableDescription.of(TableConfig("item", dim=2))


def embeddings_of(keys: npt.NDArray[np.int64], shift: float = 0.0) -> npt.NDArray[np.float32]:
    """Returns embeddings that a test can compute again."""
    angles = keys[:, None] * np.array([0.01, 0.02, 0.03, 0.04])
    made: npt.NDArray[np.float32] = (np.cos(angles) * (1 + keys[:, None] % 7) + shift).astype("f4")
    return made


def user_rows(keys: npt.NDArray[np.int64], shift: float = 0.0) -> ScanChunk:
    return ScanChunk(keys, embeddings_of(keys, shift), (keys % 9 + 1).astype(np.uint64))


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    items = ScanChunk(np.array([7, -1]), np.eye(2, dtype=np.float32), np.zeros(2, np.uint64))
    base = SnapshotWriter(f"{folder}/base", step=10)
    base.write_table(USER, [user_rows(np.arange(NUM_ROWS))])
    base.write_table(ITEM, [items])
    base.finish()
    base.commit()
    delta = SnapshotWriter(f"{folder}/delta", step=STEPS, base=f"{folder}/base")
    delta.write_table(USER, [user_rows(MOVED, 1.0), user_rows(CREATED)], [ERASED])
    keys = np.arange(len(ERASED), CREATED[-1] + 1)
    delta.write_state("visits", {"times": {}}, {"keys.user": keys, "steps.user": keys % STEPS})
    delta.finish()
    delta.commit()
    return folder


@pytest.fixture
def view(run_folder: Path) -> LookView:
    return LookView(open_source(str(run_folder), make_plugin_manager()))


@pytest.fixture
def server(view: LookView) -> Iterator[LookServer]:
    made = LookServer(view)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.close()
    thread.join(30)
