"""A storage written in Python gives the same bits in TensorFlow as native ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring import StepContainer, make_plugin_manager
from sparring.contracts import (
    Capabilities,
    Columns,
    EvictedRows,
    Keys,
    Options,
    Rows,
    ScanChunk,
    Scores,
    Storage,
    StorageDescriptor,
    TableConfig,
    hookimpl,
)
from sparring.plugins.distributions import PluginSource
from sparring_testing.processes.table_steps import read_tables
from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.optim.optimizer import Optimizer

IDS = np.concatenate([np.arange(24, dtype=np.int64) * 10**15 - 7, [-(2**63), 2**63 - 1]])
TARGETS = (np.arange(26) % 3).astype(np.float32)[:, None]


class DictStorage(Storage):
    """One shard of a table as a dict of arrays, with only the required methods."""

    capabilities = Capabilities()

    def __init__(self, table: TableConfig, _: Options) -> None:
        super().__init__(table)
        self._rows: dict[int, npt.NDArray[Any]] = {}
        self.num_finds = 0

    @property
    def memory_bytes(self) -> int:
        return len(self._rows) * self.table.row_bytes

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        self.num_finds += 1
        rows[:] = 0
        for i, key in enumerate(keys.tolist()):
            found[i] = key in self._rows
            if found[i]:
                rows[i] = self._rows[key][columns.begin : columns.end]

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        self._rows |= {key: row.copy() for key, row in zip(keys.tolist(), rows, strict=True)}
        return self._nothing_evicted()

    def _erase_impl(self, keys: Keys) -> int:
        return sum(self._rows.pop(key, None) is not None for key in keys.tolist())

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        known = list(self._rows)
        for begin in range(0, len(known), chunk_rows):
            keys = known[begin : begin + chunk_rows]
            rows = np.stack([self._rows[key][columns.begin : columns.end] for key in keys])
            yield ScanChunk(np.array(keys, np.int64), rows, np.zeros(len(keys), np.uint64))

    def _size_impl(self) -> int:
        return len(self._rows)

    def _clear_impl(self) -> None:
        self._rows.clear()

    def _close_impl(self) -> None:
        pass


class Plugin:
    @hookimpl
    def sparring_register_storage(self) -> list[StorageDescriptor]:
        return [
            StorageDescriptor(
                name="dict",
                api_version=(1, 0),
                summary="A dict.",
                options=Options,
                factory=DictStorage,
            )
        ]


def container() -> StepContainer:
    manager = make_plugin_manager()
    manager.load(PluginSource("dict", "of-a-test", "1.0", Plugin))
    return StepContainer(plugin_manager=manager)


SPARSE: dict[str, Callable[[Any], Any]] = {
    "native adam": lambda model: Optimizer(model, keras.optimizers.Adam(0.05)),
    "native adagrad": lambda model: Optimizer(model, keras.optimizers.Adagrad(0.1)),
    "fused adagrad": lambda model: Optimizer(
        model, "adagrad", learning_rate=0.1, dense=keras.optimizers.SGD(0.1)
    ),
}


def fitted(container: StepContainer, storage: str, optimizer: str, dtype: str) -> list[Any]:
    """Lookups before, during and after training."""
    keras.utils.set_random_seed(1)
    options = {"container": container, "storage": storage, "table_dtype": dtype}
    ids = keras.Input((), dtype="int64")
    single, pooled = Embedding(4, name="single", **options), EmbeddingBag(4, name="bag", **options)
    found = [single(ids), pooled(keras.ops.stack([ids, -ids], 1))]
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Add()(found)))
    model.compile(optimizer=SPARSE[optimizer](model), loss="mse")
    traced = tf.function(single)
    read = []
    for _ in range(2):
        read += [single(tf.constant(IDS)), traced(tf.constant(IDS)), model.predict(IDS, verbose=0)]
        model.fit(IDS, TARGETS, batch_size=8, shuffle=False, epochs=2, verbose=0)
    assert np.array_equal(read[0], read[1])
    assert not np.array_equal(read[2], read[-1])
    return [np.asarray(each) for each in read]


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        ("native adam", "float32"),
        ("native adagrad", "bfloat16"),
        ("fused adagrad", "float32"),
        ("fused adagrad", "bfloat16"),
    ],
)
def test_rows_equal_a_native_storage(optimizer: str, dtype: str) -> None:
    pytest.importorskip("sparring_hkv")
    with container() as own, container() as native:
        read = fitted(own, "dict", optimizer, dtype)
        expected = fitted(native, "hkv", optimizer, dtype)
        kinds = [type(each.storage("single")) for each in (own, native)]
        assert kinds[0] is DictStorage
        assert native.storage("single").capabilities.native
        assert own.storage("single").num_finds > 0
        for mine, theirs in zip(read, expected, strict=True):
            assert np.array_equal(mine, theirs)
        assert sum(map(len, read_tables(own).values())) > len(IDS)
        assert read_tables(own) == read_tables(native)


def test_an_error_of_a_python_storage_is_raised_by_the_lookup() -> None:
    class GoneError(Exception):
        """Independent of timing."""

    with container() as own:
        layer = Embedding(4, name="rows", container=own, storage="dict")
        own.storage("rows").upsert([1], np.ones((1, 4), np.float32))

        def gone(*_: object) -> None:
            raise GoneError("the place is gone")

        own.storage("rows")._find_impl = gone  # type: ignore[method-assign]
        for call in (layer, tf.function(layer)):
            with pytest.raises(tf.errors.OpError, match="the place is gone"):
                call(tf.constant([1, 2], tf.int64))
