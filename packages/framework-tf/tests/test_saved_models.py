"""A SavedModel contains the rows of its tables, and finds them where it is loaded."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring import StepContainer, count_rows, open_snapshot
from sparring.errors import (
    ClosedError,
    InvalidArgumentError,
    UnknownTableError,
    UnsupportedError,
)
from sparring_tf import opened_tables
from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.layers.embedding_collection import EmbeddingCollection
from sparring_tf.layers.table_configs import FeatureConfig, TableConfig
from sparring_tf.lookup.saved_model_rows import export_rows
from sparring_tf.opened_tables import count_open_snapshots
from sparring_tf.optim.optimizer import Optimizer
from sparring_tf.saving import saved_rows

IDS = np.arange(20, dtype=np.int64) * 10**15 - 7
BAGS = np.stack([IDS, IDS[::-1]], 1)
TARGETS = (np.arange(20) % 3).astype(np.float32)[:, None]
UNSEEN = [np.array([999], np.int64), np.array([[5, 6]], np.int64)]


def trained_model(epochs: int = 2) -> Any:
    """A model of two layers with one table each."""
    ids, bags = keras.Input((), dtype="int64"), keras.Input((None,), dtype="int64")
    found = [Embedding(4, name="rows")(ids), EmbeddingBag(4, name="bags")(bags)]
    model = keras.Model([ids, bags], keras.layers.Dense(1)(keras.layers.Concatenate()(found)))
    model.compile(optimizer=Optimizer(model, keras.optimizers.Adam(0.05)), loss="mse")
    if epochs:
        model.fit([IDS, BAGS], TARGETS, epochs=epochs, verbose=0)
    return model


def predicted(model: Any) -> Any:
    """Predictions for trained ids and for others."""
    batches = [np.concatenate([known, new]) for known, new in zip([IDS, BAGS], UNSEEN, strict=True)]
    return model.predict(batches, verbose=0)


def served(path: Path) -> Any:
    """Predictions of an exported model for the same ids."""
    batches = [np.concatenate([known, new]) for known, new in zip([IDS, BAGS], UNSEEN, strict=True)]
    loaded = tf.saved_model.load(str(path))
    return loaded.serve([tf.constant(each) for each in batches]).numpy()


LOADING = """
import sys
import numpy as np
{imports}
path, ids, bags, result = sys.argv[1:]
batches = [tf.constant(np.load(each)) for each in (ids, bags)]
loaded = tf.saved_model.load(path)
signature = loaded.signatures["serving_default"]
names = {{2: "bags", 1: "ids"}}
by_rank = {{len(spec.shape): name for name, spec in signature.structured_input_signature[1].items()}}
asked = {{by_rank[1]: batches[0], by_rank[2]: batches[1]}}
(served,) = signature(**asked).values()
if {is_keras_export}:
    assert np.array_equal(served, keras.layers.TFSMLayer(path, call_endpoint="serve")(batches))
np.save(result, served)
"""


@pytest.mark.parametrize(
    ("way", "imports"),
    [
        ("export", "import sparring_tf, keras, tensorflow as tf"),
        ("saved_model.save", "import tensorflow as tf, keras, sparring_tf"),
    ],
)
def test_a_new_process_serves_the_exported_model(way: str, imports: str, tmp_path: Path) -> None:
    model = trained_model()
    path = tmp_path / "exported"
    if way == "export":
        model.export(str(path), verbose=False)
    else:
        tf.saved_model.save(model, str(path))
    moved = tmp_path / "moved"
    path.rename(moved)
    np.save(tmp_path / "ids.npy", np.concatenate([IDS, UNSEEN[0]]))
    np.save(tmp_path / "bags.npy", np.concatenate([BAGS, UNSEEN[1]]))
    files = [str(tmp_path / name) for name in ("ids.npy", "bags.npy", "result.npy")]
    script = LOADING.format(imports=imports, is_keras_export=way == "export")
    ran = subprocess.run(
        [sys.executable, "-c", script, str(moved), *files],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert np.array_equal(np.load(files[2]), predicted(model))


@pytest.mark.parametrize("max_bytes_inside", [100, 1 << 30])
def test_the_assets_are_snapshots_of_the_embeddings(
    max_bytes_inside: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_rows, "MAX_BYTES", max_bytes_inside)
    trained_model().export(str(tmp_path / "exported"), verbose=False)
    # Nothing else contains rows.
    variables = tmp_path / "exported/variables"
    assert sorted(each.name.partition(".")[2] for each in variables.iterdir()) == [
        "data-00000-of-00001",
        "index",
    ]
    names = tf.train.load_checkpoint(str(variables / "variables")).get_variable_to_shape_map()
    assert not [each for each in names if "SPARRING" in each]
    found = {}
    for name in ("manifest.json", "manifest.1.json"):
        snapshot = open_snapshot(tmp_path / "exported/assets" / name)
        ((table, description),) = snapshot.tables.items()
        found[table] = count_rows(snapshot, table)
        assert (description.dim, description.state_width) == (4, 0)
    assert found == {"rows": 20, "bags": 20}


def test_rows_are_shared_by_loads_and_freed_with_the_last(tmp_path: Path) -> None:
    model = trained_model(1)
    model.export(str(tmp_path / "exported"), verbose=False)
    gc.collect()
    before = count_open_snapshots()
    loaded = [tf.saved_model.load(str(tmp_path / "exported")) for _ in range(2)]
    assert count_open_snapshots() == before + 2
    del loaded[0]
    gc.collect()
    assert count_open_snapshots() == before + 2
    batches = [tf.constant(IDS), tf.constant(BAGS)]
    assert np.array_equal(loaded[0].serve(batches), model.predict([IDS, BAGS], verbose=0))
    loaded.clear()
    gc.collect()
    assert count_open_snapshots() == before


def test_training_continues_next_to_the_exported_model(tmp_path: Path) -> None:
    model = trained_model(1)
    model.export(str(tmp_path / "first"), verbose=False)
    first = predicted(model)
    model.fit([IDS, BAGS], TARGETS, verbose=0)
    model.export(str(tmp_path / "second"), verbose=False)
    assert np.array_equal(served(tmp_path / "first"), first)
    assert np.array_equal(served(tmp_path / "second"), predicted(model))
    assert not np.array_equal(first, predicted(model))


def test_a_model_without_rows_serves_initial_values(tmp_path: Path) -> None:
    model = trained_model(epochs=0)
    model.export(str(tmp_path / "exported"), verbose=False)
    assert np.array_equal(served(tmp_path / "exported"), predicted(model))


def test_functions_of_a_module_are_exported_independent_of_tracing(tmp_path: Path) -> None:
    class Module(tf.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            tables = [
                TableConfig(name="halves", embedding_dim=4, combiner="mean", dtype="float16"),
                TableConfig(name="wide", embedding_dim=3, combiner=None, dtype="float64"),
            ]
            self.layer = EmbeddingCollection(
                {each.name: FeatureConfig(name=each.name, table=each) for each in tables},
                storage="memory",
                dtype="float64",
            )

        @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)])
        def look_up(self, ids: Any) -> Any:
            return self.layer({"halves": ids, "wide": ids.flat_values})

    module = Module()
    bags = tf.RaggedTensor.from_row_lengths(IDS, [0, 5, 15])
    before = module.look_up(bags)  # traced before there are rows
    optimizer = Optimizer(module.layer, keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(each) for each in module.look_up(bags).values()])
    variables = module.layer.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)
    tf.saved_model.save(module, str(tmp_path / "exported"))
    loaded = tf.saved_model.load(str(tmp_path / "exported"))
    for name, expected in module.look_up(bags).items():
        assert np.array_equal(loaded.look_up(bags)[name], expected)
        assert not np.array_equal(before[name], expected)


def remove_assets(path: Path) -> None:
    (path / "assets").rename(path / "elsewhere")


def remove_rows(path: Path) -> None:
    next((path / "assets").glob("rows.bags.*")).unlink()


def flip_a_bit(path: Path) -> None:
    file = next((path / "assets").glob("rows.bags.*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def take_rows_of_another_dim(path: Path) -> None:
    other = keras.Sequential([keras.Input((), dtype="int64"), Embedding(3, name="rows")])
    other.export(str(path.parent / "other"), verbose=False)
    for file in (path / "assets").iterdir():
        file.unlink()
    model = open_snapshot(path.parent / "other/assets/manifest.json")
    for file in (path.parent / "other/assets").iterdir():
        for name in {file.name, "manifest.1.json"} if file.name == "manifest.json" else {file.name}:
            (path / "assets" / name).write_bytes(file.read_bytes())
    assert count_rows(model, "rows") == 0


@pytest.mark.parametrize(
    ("breaking", "kind", "message"),
    [
        (
            remove_assets,
            tf.errors.FailedPreconditionError,
            r"SnapshotNotFoundError: the tables .* assets.*",
        ),
        (remove_rows, tf.errors.DataLossError, r"rows\.bags\.0000-4096.* is missing"),
        (flip_a_bit, tf.errors.DataLossError, r"SnapshotDamagedError: .*rows\.bags"),
        (take_rows_of_another_dim, tf.errors.InvalidArgumentError, "no table 'bags'|UnknownTable"),
    ],
)
def test_a_model_without_its_snapshot_is_rejected(
    breaking: Callable[[Path], None], kind: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "exported"
    trained_model(1).export(str(path), verbose=False)
    gc.collect()
    before = count_open_snapshots()
    breaking(path)
    with pytest.raises(kind, match=message) as caught:
        tf.saved_model.load(str(path))
    assert "Copy the whole SavedModel" in str(caught.value)
    del caught
    gc.collect()
    assert count_open_snapshots() == before


def test_rows_of_another_dim_are_rejected_by_the_lookup(tmp_path: Path) -> None:
    for dim in (3, 4):
        layers = [keras.Input((), dtype="int64"), Embedding(dim, name="rows")]
        keras.Sequential(layers).export(str(tmp_path / f"dim{dim}"), verbose=False)
    for file in (tmp_path / "dim3/assets").iterdir():
        (tmp_path / "dim4/assets" / file.name).write_bytes(file.read_bytes())
    loaded = tf.saved_model.load(str(tmp_path / "dim4"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="dim"):
        loaded.serve(tf.constant(IDS))


def test_a_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(model: Any, kind: type[Exception], message: str) -> None:
        with pytest.raises(kind, match=message):
            model.export(str(tmp_path / "exported"), verbose=False)
        assert not (tmp_path / "exported/saved_model.pb").exists()

    first, second = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
    inner = keras.Sequential([keras.Input((), dtype="int64"), Embedding(4, name="rows")])
    same = [Embedding(4, name="rows"), inner]
    found = [layer(ids) for layer, ids in zip(same, (first, second), strict=True)]
    two = keras.Model([first, second], keras.layers.Add()(found))
    refused(two, InvalidArgumentError, "the same name 'rows'")
    with StepContainer() as container:
        layers = [keras.Input((), dtype="int64"), Embedding(4, name="rows", container=container)]
        model = keras.Sequential(layers)
        with monkeypatch.context() as patched:
            patched.setattr(container.collective, "world_size", 2)
            patched.setattr(container, "reads_directly", lambda _: True)
            refused(model, UnsupportedError, r"are on 2 ranks.*container\.save")
    refused(model, ClosedError, "closed")


def test_an_export_with_unreadable_rows_ends_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"first": 4, "second": 3}
    tables = [TableConfig(name=name, embedding_dim=dim) for name, dim in names.items()]
    features = {each.name: FeatureConfig(name=each.name, table=each) for each in tables}
    layer = EmbeddingCollection(features, storage="memory")
    for name, dim in names.items():
        rows = np.ones((2, dim), np.float32)
        layer.agent.container.storage(name).upsert(np.arange(2), rows)

    def broken(*_: object) -> None:
        raise OSError("disk gone")

    # The first table is written and sealed during the second.
    monkeypatch.setattr(layer.agent.container.storage("second"), "_scan_impl", broken)
    cache: dict[Any, Any] = {}
    with pytest.raises(OSError, match="disk gone"):
        export_rows(layer.agent, cache)
    (export,) = cache.values()
    assert list(export.folder.iterdir()) == []
    names_of_threads = [each.name for each in threading.enumerate()]
    assert not [name for name in names_of_threads if name.startswith("sparring-snapshot")]


def test_tables_that_cannot_be_opened_are_closed_unless_others_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_model(1).export(str(tmp_path / "exported"), verbose=False)
    gc.collect()
    closed: list[StepContainer] = []
    close = StepContainer.close

    def closes(container: StepContainer) -> None:
        closed.append(container)
        close(container)

    monkeypatch.setattr(StepContainer, "close", closes)
    before = count_open_snapshots()
    manifest = str(tmp_path / "exported/assets/manifest.json")
    with pytest.raises(UnknownTableError):
        opened_tables._open(manifest, [("nobody", "sum")])
    assert (len(closed), count_open_snapshots()) == (1, before)
    (table,) = open_snapshot(manifest).tables
    number = opened_tables._open(manifest, [(table, "sum")])
    with pytest.raises(UnknownTableError):
        opened_tables._open(manifest, [("nobody", "sum")])
    assert (len(closed), count_open_snapshots()) == (1, before + 1)
    opened_tables._close(number)
    assert (len(closed), count_open_snapshots()) == (2, before)
