"""`tf.train.Checkpoint` saves the rows of tables together with the variables."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring.errors import (
    DataError,
    InvalidArgumentError,
    SnapshotError,
    UnsupportedError,
)
from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_collection import EmbeddingCollection
from sparring_tf.layers.table_configs import FeatureConfig, TableConfig
from sparring_tf.optim.optimizer import Optimizer
from sparring_tf.saving import orphaned_rows, saved_rows
from sparring_tf.saving.anchors import Anchor

IDS = np.arange(20, dtype=np.int64) * 10**15 - 7
TARGETS = (np.arange(20) % 3).astype(np.float32)[:, None]


def model_of(sparse: Any = None, dim: int = 4, **options: Any) -> Any:
    layers = [keras.Input((), dtype="int64"), Embedding(dim, name="rows"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    sparse = sparse or keras.optimizers.Adam(0.05)
    model.compile(optimizer=Optimizer(model, sparse, **options), loss="mse")
    model.optimizer.build(model.trainable_variables)
    return model


def trained(model: Any, epochs: int) -> Any:
    model.fit(IDS, TARGETS, shuffle=False, epochs=epochs, verbose=0)
    return model.predict(IDS, verbose=0)


def checkpoint_of(model: Any) -> Any:
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


@pytest.mark.parametrize("kind", ["update method", "native optimizer"])
def test_a_restored_model_trains_like_the_saved_one(kind: str, tmp_path: Path) -> None:
    def made() -> Any:
        if kind == "native optimizer":
            return model_of()
        return model_of("adam", learning_rate=0.1, dense=keras.optimizers.Adam(0.01))

    model = made()
    before = trained(model, 2)
    path = checkpoint_of(model).save(str(tmp_path / "checkpoint"))
    after = trained(model, 2)
    keras.utils.set_random_seed(99)
    other = made()
    other.fit(IDS + 5, TARGETS, verbose=0)
    checkpoint_of(other).restore(path).assert_consumed()
    # Rows that are not in the checkpoint are removed.
    assert other.layers[0].num_rows() == {"rows": len(IDS)}
    assert np.array_equal(other.predict(IDS, verbose=0), before)
    np.testing.assert_allclose(trained(other, 2), after, atol=1e-6)


FRESH = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import numpy as np
from test_checkpoints import checkpoint_of, model_of, trained
model = model_of()
checkpoint_of(model).restore({path!r}).assert_consumed()
np.save({result!r}, trained(model, 2))
"""


def test_a_new_process_continues_from_a_checkpoint(tmp_path: Path) -> None:
    model = model_of()
    trained(model, 2)
    path = checkpoint_of(model).save(str(tmp_path / "checkpoint"))
    after = trained(model, 2)
    result = str(tmp_path / "result.npy")
    script = FRESH.format(folder=str(Path(__file__).parent), path=path, result=result)
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    np.testing.assert_allclose(np.load(result), after, atol=1e-6)


def test_rows_of_several_tables_are_restored_without_an_optimizer(tmp_path: Path) -> None:
    def made() -> Any:
        tables = [TableConfig(name=name, embedding_dim=4, combiner="sum") for name in "ab"]
        features = {each.name: FeatureConfig(name=each.name, table=each) for each in tables}
        return EmbeddingCollection(features, name="both")

    layer = made()
    optimizer = Optimizer(layer, keras.optimizers.Adagrad(0.5))
    ids = {"a": tf.constant(IDS), "b": tf.constant(np.arange(20) % 5)}
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(each**2) for each in layer(ids).values()])
    variables = layer.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)
    path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "checkpoint"))
    other = made()
    tf.train.Checkpoint(layer=other).restore(path).assert_consumed()
    assert other.num_rows() == {"a": 20, "b": 5}
    for name, found in other(ids).items():
        assert np.array_equal(found, layer(ids)[name])


def test_a_checkpoint_without_rows_is_rejected_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of()
    with monkeypatch.context() as patched:
        patched.delattr(Anchor, "_serialize_to_tensors")
        path = checkpoint_of(model).save(str(tmp_path / "checkpoint"))
    before = trained(model, 1)
    with pytest.raises(
        DataError, match=r"has no rows of table 'rows': .*SPARRING_KEYS.* are missing"
    ):
        checkpoint_of(model).restore(path)
    assert np.array_equal(model.predict(IDS, verbose=0), before)
    assert int(model.optimizer.iterations) == 1


def test_rows_of_another_table_are_rejected_and_change_nothing(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    path = tf.train.Checkpoint(layer=Embedding(4, storage="memory", name="rows")).save(folder)
    other = Embedding(4, storage="memory", name="rows", seed=3)
    with pytest.raises(InvalidArgumentError, match="seed 0, but the layer's table has 3"):
        tf.train.Checkpoint(layer=other).restore(path)
    model = model_of(keras.optimizers.Ftrl(0.1))
    trained(model, 1)
    before = model.layers[0](IDS)
    path = checkpoint_of(model_of()).save(folder)
    with pytest.raises(InvalidArgumentError, match="state of 'Adam'"):
        tf.train.Checkpoint(model=model).restore(path)
    assert np.array_equal(model.layers[0](IDS), before)


def test_unsupported_checkpoints_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of()
    trained(model, 1)
    path = str(tmp_path / "checkpoint")
    checkpoint = tf.train.Checkpoint(model=model)
    with pytest.raises(Exception, match=r"UnsupportedError: .* outside of tf\.function"):
        tf.function(checkpoint.write)(path)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    with pytest.raises(UnsupportedError, match="asynchronous checkpoint"):
        checkpoint.save(path, options)
    monkeypatch.setattr(model.layers[0].agent.container.collective, "world_size", 2)
    with pytest.raises(
        UnsupportedError, match=r"are on 2 ranks, but a checkpoint .*container\.save"
    ):
        checkpoint.save(path)
    assert not list(tmp_path.glob("checkpoint*"))


def test_damaged_rows_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Anchor._serialize_to_tensors

    def cut(anchor: Any) -> dict[str, Any]:
        tensors = whole(anchor)
        return {**tensors, "SPARRING_KEYS": tensors["SPARRING_KEYS"][1:]}

    model = model_of()
    before = trained(model, 1)
    checkpoint = tf.train.Checkpoint(model=model)
    with monkeypatch.context() as patched:
        patched.setattr(Anchor, "_serialize_to_tensors", cut)
        path = checkpoint.save(str(tmp_path / "checkpoint"))
    with pytest.raises(DataError, match="damaged"):
        checkpoint.restore(path)
    assert np.array_equal(model.predict(IDS, verbose=0), before)


@pytest.fixture
def few_bytes_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_rows, "MAX_BYTES", 100)


@pytest.mark.usefixtures("few_bytes_inside")
def test_large_rows_are_saved_in_a_snapshot_next_to_the_checkpoint(tmp_path: Path) -> None:
    model = model_of()
    before = trained(model, 2)
    path = checkpoint_of(model).save(str(tmp_path / "checkpoint"))
    assert path.endswith("checkpoint-1")
    assert names_in(tmp_path / "checkpoint-1.checkpoint.rows") == ["save-000001.0"]
    after = trained(model, 2)
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    other = model_of()
    other.fit(IDS + 5, TARGETS, verbose=0)
    path = str(moved / "checkpoint-1")
    checkpoint_of(other).restore(path).assert_consumed()
    assert np.array_equal(other.predict(IDS, verbose=0), before)
    np.testing.assert_allclose(trained(other, 2), after, atol=1e-6)


@pytest.mark.usefixtures("few_bytes_inside")
def test_a_layer_that_is_created_after_restore_finds_the_sidecar(tmp_path: Path) -> None:
    model = model_of()
    before = trained(model, 1)

    class Holder(tf.Module):  # type: ignore[misc,unused-ignore]
        pass

    holder, later = Holder(), Holder()
    holder.model = model
    path = tf.train.Checkpoint(held=holder).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(held=later).restore(path)
    other = model_of()
    later.model = other
    assert np.array_equal(other.predict(IDS, verbose=0), before)


@pytest.mark.usefixtures("few_bytes_inside")
@pytest.mark.parametrize("breaking", ["no rows", "rows of another"])
def test_a_checkpoint_without_its_sidecar_is_rejected_and_changes_nothing(
    breaking: str, tmp_path: Path
) -> None:
    model = model_of()
    trained(model, 1)
    path = Path(checkpoint_of(model).save(str(tmp_path / "first" / "checkpoint")))
    before = trained(model, 1)
    rows = Path(f"{path}.checkpoint.rows")
    rows.rename(tmp_path / "elsewhere")
    message = rf"expected at {rows}/save-000001\.0; it does not exist"
    if breaking == "rows of another":
        checkpoint_of(model).write(str(tmp_path / "second"))
        (tmp_path / "second.checkpoint.rows").rename(rows)
        message = "of another save"
    with pytest.raises(SnapshotError, match=message) as caught:
        checkpoint_of(model).restore(str(path))
    assert type(caught.value) is SnapshotError
    assert np.array_equal(model.predict(IDS, verbose=0), before)
    assert int(model.optimizer.iterations) == 2


@pytest.mark.usefixtures("few_bytes_inside")
def test_rows_are_removed_with_their_checkpoints_and_contain_all_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [TableConfig(name=name, embedding_dim=4, combiner="sum") for name in "abc"]
    features = {each.name: FeatureConfig(name=each.name, table=each) for each in tables}
    layer = EmbeddingCollection(features, storage="memory")
    Optimizer(layer, "sgd")
    container = layer.agent.container
    for each in tables:
        container.storage(each.name).upsert(IDS, np.ones((len(IDS), 4), np.float32))
    monkeypatch.setattr(orphaned_rows, "_ORPHAN_SECONDS", -1.0)
    checkpoint = tf.train.Checkpoint(layer=layer)
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=1)
    for _ in range(3):
        path = manager.save()
    # The folder of the second save is removed by the next one.
    assert names_in(tmp_path, "*.rows") == ["ckpt-2.checkpoint.rows", "ckpt-3.checkpoint.rows"]
    assert names_in(Path(f"{path}.checkpoint.rows")) == ["save-000001.0"]
    for _ in range(3):
        checkpoint.write(path)
    assert names_in(Path(f"{path}.checkpoint.rows")) == ["save-000003.0", "save-000004.0"]
    checkpoint.read(path).assert_consumed()
    assert layer.num_rows() == dict.fromkeys("abc", len(IDS))


@pytest.mark.usefixtures("few_bytes_inside")
def test_rows_of_a_renamed_checkpoint_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(orphaned_rows, "_ORPHAN_SECONDS", -1.0)
    model = model_of()
    before = trained(model, 1)
    checkpoint = checkpoint_of(model)
    first, best, gone = (str(tmp_path / name) for name in ("first", "best", "gone"))
    checkpoint.write(first)
    for file in tmp_path.glob("first.*[!s]"):
        file.rename(file.with_name(file.name.replace("first", "best")))
    checkpoint.write(gone)
    for file in tmp_path.glob("gone.*[!s]"):
        file.unlink()
    trained(model, 1)
    checkpoint.write(str(tmp_path / "last"))
    assert names_in(tmp_path, "*.rows") == ["first.checkpoint.rows", "last.checkpoint.rows"]
    checkpoint.read(best)
    assert np.array_equal(model.predict(IDS, verbose=0), before)
    # If a checkpoint cannot be read, it is unknown which rows it refers to.
    Path(f"{best}.index").write_bytes(b"damaged")
    checkpoint.write(str(tmp_path / "more"))
    assert "first.checkpoint.rows" in names_in(tmp_path, "*.rows")
    assert "cannot remove rows of deleted checkpoints" in caplog.text


@pytest.mark.usefixtures("few_bytes_inside")
@pytest.mark.parametrize("failing", ["stat", "rmtree"])
def test_a_checkpoint_is_complete_if_another_process_removes_old_rows(
    failing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(orphaned_rows, "_ORPHAN_SECONDS", -1.0)
    model = model_of()
    before = trained(model, 1)
    orphan = tmp_path / "gone.checkpoint.rows"
    orphan.mkdir()
    remove, glob = shutil.rmtree, Path.glob

    def is_removed_meanwhile(folder: Path) -> None:
        remove(folder)
        remove(folder)

    def found_and_removed(folder: Path, pattern: str) -> Any:
        found = list(glob(folder, pattern))
        if orphan in found:
            remove(orphan)
        return found

    with monkeypatch.context() as patched:
        if failing == "stat":
            patched.setattr(Path, "glob", found_and_removed)
        else:
            patched.setattr(shutil, "rmtree", is_removed_meanwhile)
        checkpoint_of(model).write(str(tmp_path / "checkpoint"))
    assert not orphan.exists()
    assert ("cannot remove rows" in caplog.text) == (failing == "rmtree")
    trained(model, 1)
    checkpoint_of(model).read(str(tmp_path / "checkpoint"))
    assert np.array_equal(model.predict(IDS, verbose=0), before)


@pytest.mark.usefixtures("few_bytes_inside")
def test_a_checkpoint_keeps_no_table_alive(tmp_path: Path) -> None:
    layer = Embedding(4, storage="memory", name="rows")
    container = weakref.ref(layer.agent.container)
    layer.agent.container.storage("rows").upsert(IDS, np.ones((len(IDS), 4), np.float32))
    path = tf.train.Checkpoint(layer=layer).save(str(tmp_path / "checkpoint"))
    assert names_in(Path(f"{path}.checkpoint.rows")) == ["save-000001.0"]
    del layer
    keras.backend.clear_session()
    gc.collect()
    assert container() is None


def names_in(folder: Path, pattern: str = "*") -> list[str]:
    return sorted(each.name for each in folder.glob(pattern))
