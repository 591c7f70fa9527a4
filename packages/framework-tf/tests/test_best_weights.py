"""Weights of an older epoch are not combined with later rows: error, or the rows are restored too."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

import sparring_tf
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.optim.optimizer import Optimizer

IDS = np.arange(20, dtype=np.int64) * 10**15 - 7
TARGETS = (np.arange(20) % 3).astype(np.float32)[:, None]
REFUSED = r"dense weights are from step \d+, but the rows of table 'rows' are from step \d+"


def model_of(layer: Any = None, **options: Any) -> Any:
    layer = Embedding(4, name="rows", **options) if layer is None else layer
    model = keras.Sequential([keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)])
    sparse = keras.optimizers.Adam(0.5)
    model.compile(optimizer=Optimizer(model, sparse), loss="mse", run_eagerly=False)
    return model


class Recorder(keras.callbacks.Callback):
    """Collects predictions after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.found.append(self.model(IDS).numpy())


def fit_past_the_best(model: Any, stopping: Any, record: Recorder) -> int:
    """Trains on targets that are reversed midway, and returns the best epoch."""
    changed = np.concatenate([TARGETS, -TARGETS])
    history = model.fit(
        np.concatenate([IDS, IDS]),
        changed,
        validation_data=(IDS, TARGETS),
        batch_size=20,
        shuffle=False,
        epochs=4,
        verbose=0,
        callbacks=[record, stopping],
    )
    best = int(np.argmin(history.history["val_loss"]))
    assert best < 3
    return best


def test_weights_of_the_best_epoch_with_later_rows_are_rejected_in_every_call(
    tmp_path: Path,
) -> None:
    model, record = model_of(), Recorder()
    stopping = keras.callbacks.EarlyStopping(patience=9, restore_best_weights=True)
    model.predict(IDS, verbose=0)  # traced before
    fit_past_the_best(model, stopping, record)
    with pytest.raises(InvalidArgumentError, match=REFUSED):
        model(IDS)
    with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
        model.predict(IDS, verbose=0)
    with pytest.raises(InvalidArgumentError, match=r"sparring_tf\.EarlyStopping"):
        model.fit(IDS, TARGETS, verbose=0)
    with pytest.raises(InvalidArgumentError, match=REFUSED):
        model.save_weights(tmp_path / "mixed.weights.h5")
    with pytest.raises(InvalidArgumentError, match=REFUSED):
        tf.train.Checkpoint(model=model).write(str(tmp_path / "mixed"))


def test_our_callback_restores_the_best_epoch_bit_for_bit() -> None:
    model, record = model_of(), Recorder()
    stopping = sparring_tf.EarlyStopping(patience=9, restore_best_weights=True)
    best = fit_past_the_best(model, stopping, record)
    assert np.array_equal(model(IDS).numpy(), record.found[best])
    assert np.array_equal(model.predict(IDS, verbose=0), record.found[best])
    assert not np.array_equal(record.found[-1], record.found[best])
    model.fit(IDS, TARGETS, verbose=0)


def test_our_callback_rejects_large_tables_with_the_fix() -> None:
    stopping = sparring_tf.EarlyStopping(restore_best_weights=True, max_bytes=100)
    with pytest.raises(UnsupportedError, match="ModelCheckpoint"):
        fit_past_the_best(model_of(), stopping, Recorder())


def test_loading_a_file_of_that_epoch_allows_lookups_again(tmp_path: Path) -> None:
    model = model_of(EmbeddingBag(4, name="rows"))
    model.fit(IDS, TARGETS, verbose=0)
    older, expected = model.get_weights(), model.predict(IDS, verbose=0)
    model.save_weights(tmp_path / "best.weights.h5")
    model.fit(IDS, TARGETS, verbose=0)
    model.set_weights(older)
    with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
        model.predict(IDS, verbose=0)
    model.load_weights(tmp_path / "best.weights.h5")
    assert np.array_equal(model.predict(IDS, verbose=0), expected)


@pytest.mark.parametrize("copied", [list, copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))])
def test_newer_weights_allow_lookups_again_and_copies_keep_the_version(copied: Any) -> None:
    model = model_of()
    initial = copied(model.get_weights())
    model.fit(IDS, TARGETS, verbose=0)
    current, expected = copied(model.get_weights()), model.predict(IDS, verbose=0)
    model.set_weights(initial)
    with pytest.raises(InvalidArgumentError, match=r"from step 0, .* from step 1"):
        model(IDS)
    model.set_weights(current)
    assert np.array_equal(model.predict(IDS, verbose=0), expected)


def test_setting_dense_weights_of_another_model_warns_if_there_are_rows() -> None:
    model, other = model_of(), model_of()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.set_weights(model.get_weights())
    model.fit(IDS, TARGETS, verbose=0)
    with pytest.warns(UserWarning, match=r"get_weights does not contain rows.*load_weights"):
        other.set_weights(model.get_weights())
    for ours, theirs in zip(other.get_weights(), model.get_weights(), strict=True):
        assert np.array_equal(ours, theirs)
    other.predict(IDS, verbose=0)


def test_an_old_h5_file_is_rejected_because_it_would_have_no_rows(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"\.keras"):
        model_of().save(tmp_path / "model.h5")


def of_name(name: str) -> Any:
    layers = [Embedding(3, storage="memory", name=name), keras.layers.Dense(1, name="head")]
    model = keras.Sequential([keras.Input((), dtype="int64"), *layers])
    model.compile(Optimizer(model, keras.optimizers.SGD(0.1)), "mse")
    return model


def averaged(model: Any, others: list[Any]) -> None:
    model.set_weights([(a + b) / 2 for a, b in zip(model.get_weights(), others, strict=True)])


def in_place(model: Any, others: list[Any]) -> None:
    mine = model.get_weights()
    for each, other in zip(mine, others, strict=True):
        np.add(each, other, out=each)
    model.set_weights(mine)


WRITES: dict[str, Any] = {
    "assign": lambda model, others: [
        each.assign(0.5 * each + 0.5 * other)
        for each, other in zip(model.variables, others, strict=True)
    ],
    "copies": lambda model, _: [each.assign(tf.identity(each)) for each in model.variables],
    "state tree": lambda model, _: model.set_state_tree(
        keras.tree.map_structure(tf.identity, model.get_state_tree())
    ),
    "averages": averaged,
    "averages in place": in_place,
    "pickled averages": lambda model, others: model.set_weights(
        pickle.loads(pickle.dumps([0.5 * each for each in others]))
    ),
    "assign_sub": lambda model, others: model.variables[0].assign_sub(others[0]),
}


@pytest.mark.parametrize("how", WRITES)
def test_values_without_a_version_are_rejected(how: str) -> None:
    """The rows of a target network would not move with its dense weights."""
    model = of_name("rows")
    ids = np.array([1, 2])
    model.fit(ids, np.ones((2, 1)), verbose=0)
    before = [model.layers[0](ids), *model.layers[1].get_weights()]
    with pytest.raises(InvalidArgumentError, match=r"assign: found .* anchor of table 'rows'"):
        WRITES[how](model, model.get_weights())
    after = [model.layers[0](ids), *model.layers[1].get_weights()]
    assert all(map(np.array_equal, before, after))


def test_rows_of_a_target_network_move_as_the_message_says() -> None:
    online, target = of_name("rows"), of_name("rows")
    ids = np.array([1, 2])
    online.fit(ids, np.ones((2, 1)), verbose=0)
    layers, rows = (online.layers[0], target.layers[0]), []
    for chunk in online.optimizer.container.storage("rows").scan():
        rows.append(0.9 * layers[1](chunk.keys) + 0.1 * layers[0](chunk.keys))
        target.optimizer.container.assign("rows", chunk.keys, rows[-1])
        assert np.array_equal(layers[1](chunk.keys), rows[-1])
    assert len(rows) == 1


def test_a_copy_of_weights_warns_if_the_initial_rows_differ() -> None:
    """Keras would copy the rows."""
    first, same, other = of_name("rows"), of_name("rows"), of_name("others")
    same.set_weights(first.get_weights())
    with pytest.warns(UserWarning, match="rows of table 'others' are unchanged"):
        other.set_weights(first.get_weights())
