"""Training snapshots, and serving snapshots that are written from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("sparring_packed.library", reason="sparring-packed is not installed")

import sparring_packed
from sparring import ScanChunk, SnapshotWriter, TableConfig, TableDescription
from sparring.adapter import initial_rows
from sparring_packed.library import library_path

if not library_path().exists():
    pytest.skip("libsparring_packed.so is not built", allow_module_level=True)

EXTREMES = (-1, 0, -(2**63), 2**63 - 1)


@dataclass
class Training:
    """A trained table as a dict that can be saved."""

    folder: Path
    config: TableConfig
    rows: dict[int, npt.NDArray[Any]] = field(default_factory=dict)
    step: int = 0

    @property
    def served(self) -> Path:
        return self.folder / "served"

    def url(self, step: int | None = None) -> str:
        return str(self.folder / "run" / f"step-{self.step if step is None else step:012d}")

    def served_url(self, step: int | None = None) -> str:
        return str(self.served / f"step-{self.step if step is None else step:012d}")

    def draw(self, keys: npt.ArrayLike, seed: int) -> dict[int, npt.NDArray[Any]]:
        """Returns random rows of keys."""
        names = np.asarray(keys, np.int64).tolist()
        drawn = np.random.default_rng(seed).normal(size=(len(names), self.config.dim))
        return dict(zip(names, drawn.astype(self.config.numpy_dtype), strict=True))

    def save(
        self,
        changed: dict[int, npt.NDArray[Any]],
        erased: Sequence[int] = (),
        *,
        is_delta: bool = True,
    ) -> str:
        """Takes a step that changes and erases rows, and saves it; the first snapshot is full."""
        base = self.url() if self.step and is_delta else None
        self.step += 1
        for key in erased:
            self.rows.pop(key, None)
        self.rows |= changed
        saved = changed if base else self.rows
        writer = SnapshotWriter(self.url(), step=self.step, base=base)
        chunk = ScanChunk(
            np.array(list(saved), np.int64),
            np.array(list(saved.values()), self.config.numpy_dtype).reshape(-1, self.config.dim),
            np.zeros(len(saved), np.uint64),
        )
        gone = [np.array(erased, np.int64)] if base and len(erased) else []
        writer.write_table(TableDescription.of(self.config), [chunk], gone)
        writer.finish()
        writer.commit()
        return self.url()

    def publish(self, **settings: Any) -> sparring_packed.WriteResult:
        return sparring_packed.write(self.url(), self.served_url(), **settings)

    def train(
        self, changed: npt.ArrayLike, erased: Sequence[int] = (), **settings: Any
    ) -> sparring_packed.WriteResult:
        """Takes a step that changes random rows, and publishes it; later versions are deltas."""
        base = {"base": self.served_url()} if self.step else {}
        self.save(self.draw(changed, self.step), erased)
        return self.publish(**base, **settings)

    def expected(self, ids: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Returns the embeddings that a lookup in training returns."""
        keys = np.asarray(ids, np.int64)
        expected = initial_rows(keys, self.config).astype(np.float32)
        for i, key in enumerate(keys.tolist()):
            if key in self.rows:
                expected[i] = self.rows[key]
        return expected


@pytest.fixture
def new_training(tmp_path: Path) -> Callable[..., Training]:
    """Creates trainings of a table in a folder of the test."""
    item = TableConfig("item", dim=24, initializer="normal", seed=5)
    return lambda config=item, folder=".": Training(tmp_path / folder, config)


@pytest.fixture
def training(new_training: Callable[..., Training]) -> Training:
    return new_training()


@pytest.fixture
def trained(training: Training) -> Training:
    """A full snapshot of 3,000 rows, and its serving snapshot."""
    keys = np.random.default_rng(0).choice(10**9, 3_000, replace=False) - 5 * 10**8
    training.save(training.draw([*EXTREMES, *keys.tolist()], 1))
    training.publish()
    return training


def bits(rows: Any) -> Any:
    return np.ascontiguousarray(rows, np.float32).view(np.uint32)
