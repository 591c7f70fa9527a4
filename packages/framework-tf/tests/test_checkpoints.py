"""`tf.train.Checkpoint` holds the rows of tables beside the variables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring.errors import DataError, InvalidArgumentError, UnsupportedError
from sparring_tf import (
    Embedding,
    EmbeddingCollection,
    FeatureConfig,
    Optimizer,
    TableConfig,
    saved_rows,
)
from sparring_tf.anchors import Anchor

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
def test_a_restored_model_goes_on_as_the_saved_one(kind: str, tmp_path: Path) -> None:
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
    # Rows that the checkpoint lacks are gone.
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


def test_a_fresh_process_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
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


def test_rows_of_several_tables_come_back_into_a_model_alone(tmp_path: Path) -> None:
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


def test_a_checkpoint_without_rows_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of()
    with monkeypatch.context() as patched:
        patched.delattr(Anchor, "_serialize_to_tensors")
        path = checkpoint_of(model).save(str(tmp_path / "checkpoint"))
    before = trained(model, 1)
    with pytest.raises(tf.errors.NotFoundError, match="SPARRING_"):
        checkpoint_of(model).restore(path)
    assert np.array_equal(model.predict(IDS, verbose=0), before)
    assert int(model.optimizer.iterations) == 1


def test_rows_of_another_table_are_refused_and_stay(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    path = tf.train.Checkpoint(layer=Embedding(4, storage="memory", name="rows")).save(folder)
    other = Embedding(4, storage="memory", name="rows", seed=3)
    with pytest.raises(InvalidArgumentError, match="seed 0, the layer's table 3"):
        tf.train.Checkpoint(layer=other).restore(path)
    model = model_of(keras.optimizers.Ftrl(0.1))
    trained(model, 1)
    before = model.layers[0](IDS)
    path = checkpoint_of(model_of()).save(folder)
    with pytest.raises(InvalidArgumentError, match="state of 'Adam'"):
        tf.train.Checkpoint(model=model).restore(path)
    assert np.array_equal(model.layers[0](IDS), before)


def test_what_a_checkpoint_cannot_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of()
    trained(model, 1)
    path = str(tmp_path / "checkpoint")
    checkpoint = tf.train.Checkpoint(model=model)
    with pytest.raises(Exception, match=r"UnsupportedError: .* outside of tf\.function"):
        tf.function(checkpoint.write)(path)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    with pytest.raises(UnsupportedError, match="asynchronously"):
        checkpoint.save(path, options)
    monkeypatch.setattr(saved_rows, "MOST_BYTES", 100)
    with pytest.raises(UnsupportedError, match=r"a checkpoint holds up to 100; .*container\.save"):
        checkpoint.save(path)
    assert not list(tmp_path.glob("checkpoint*"))


def test_damaged_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
