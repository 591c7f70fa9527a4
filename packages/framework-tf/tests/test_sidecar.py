"""Rows that are too large for a Keras file, or on several ranks, are in a snapshot next to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
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
    SnapshotDamagedError,
    SnapshotError,
    SparringError,
    UnsupportedError,
)
from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.optim.optimizer import Optimizer
from sparring_tf.saving import keras_rows, saved_rows
from sparring_tf.saving.model_files import save_model
from sparring_tf.saving.sidecar import parse_sidecar_rows

IDS = np.arange(20, dtype=np.int64) * 10**15 - 7
TARGETS = (np.arange(20) % 3).astype(np.float32)[:, None]


@pytest.fixture(autouse=True)
def few_bytes_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_rows, "MAX_BYTES", 100)


def model_of(sparse: Any = None, **options: Any) -> Any:
    layers = [keras.Input((), dtype="int64"), Embedding(4, **{"name": "rows", **options})]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    sparse = keras.optimizers.Adam(0.05) if sparse is None else sparse
    model.compile(optimizer=Optimizer(model, sparse), loss="mse")
    return model


def trained(model: Any, epochs: int) -> Any:
    model.fit(IDS, TARGETS, shuffle=False, epochs=epochs, verbose=0)
    return model.predict(np.concatenate([IDS, [999]]), verbose=0)


def saved_model(path: Path) -> Any:
    model = model_of()
    trained(model, 1)
    model.save(path)
    return model


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def saves(path: Path) -> list[str]:
    """Files next to a file."""
    return names_in(Path(f"{path}.rows"))


def plain_save(model: Any, path: Path) -> None:
    model.save(path)


@pytest.mark.parametrize("save", [plain_save, save_model], ids=["model.save", "save_model"])
def test_a_loaded_model_continues_like_the_saved_one(
    save: Callable[[Any, Path], None], tmp_path: Path
) -> None:
    model = model_of()
    before = trained(model, 2)
    save(model, tmp_path / "model.keras")
    after = trained(model, 2)
    assert saves(tmp_path / "model.keras") == ["save-000001.0"]
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("model.keras", "model.keras.rows"):
        (tmp_path / name).rename(moved / name)
    loaded = keras.models.load_model(moved / "model.keras")
    assert np.array_equal(loaded.predict(np.concatenate([IDS, [999]]), verbose=0), before)
    np.testing.assert_allclose(trained(loaded, 2), after, atol=1e-6)


def test_a_file_can_be_renamed_with_its_folder(tmp_path: Path) -> None:
    model = saved_model(tmp_path / "model.keras")
    (tmp_path / "model.keras").rename(tmp_path / "best.keras")
    keras.models.load_model(tmp_path / "best.keras")
    (tmp_path / "model.keras.rows").rename(tmp_path / "best.keras.rows")
    loaded = keras.models.load_model(tmp_path / "best.keras")
    assert np.array_equal(loaded.predict(IDS, verbose=0), model.predict(IDS, verbose=0))


def test_weights_files_and_unzipped_files_have_a_sidecar(tmp_path: Path) -> None:
    model = model_of()
    trained(model, 1)
    model.save_weights(tmp_path / "model.weights.h5")
    save_model(model, tmp_path / "whole.weights.h5")
    for name in ("model.weights.h5", "whole.weights.h5"):
        other = model_of()
        other.fit(IDS + 1, TARGETS, verbose=0)
        other.load_weights(tmp_path / name)
        assert other.layers[0].num_rows() == {"rows": len(IDS)}
        assert np.array_equal(other.predict(IDS, verbose=0), model.predict(IDS, verbose=0))


def test_tables_of_one_container_share_a_snapshot_and_small_ones_are_inside(
    tmp_path: Path,
) -> None:
    ids = keras.Input((), dtype="int64")
    large, other = (Embedding(4, name=name)(ids) for name in ("large", "other"))
    bag = EmbeddingBag(4, name="small")
    found = keras.layers.Add()([large, other, bag(ids % 2)])
    model = keras.Model(ids, keras.layers.Dense(1)(found))
    model.compile(
        optimizer=Optimizer(model, "sgd", learning_rate=0.1, dense=keras.optimizers.SGD()),
        loss="mse",
    )
    expected = trained(model, 1)
    model.save(tmp_path / "model.keras")
    assert saves(tmp_path / "model.keras") == ["save-000001.0"]
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert np.array_equal(loaded.predict(np.concatenate([IDS, [999]]), verbose=0), expected)
    store: dict[str, Any] = {}
    bag.save_own_variables(store)
    assert set(store) == {"table_0", "keys_0", "rows_0", "scores_0", "state_0"}


def test_the_previous_save_is_kept_for_copies_and_older_ones_are_removed(tmp_path: Path) -> None:
    model, path = model_of(), tmp_path / "model.weights.h5"
    predictions = []
    for number in range(3):
        predictions.append(trained(model, 1))
        model.save_weights(path)
        shutil.copy(path, tmp_path / f"copy{number}.weights.h5")
    assert saves(path) == ["save-000002.0", "save-000003.0"]
    for number in (1, 2):
        other = model_of()
        other.load_weights(tmp_path / f"copy{number}.weights.h5")
        found = other.predict(np.concatenate([IDS, [999]]), verbose=0)
        assert np.array_equal(found, predictions[number])
    with pytest.raises(ValueError, match=r"save-000001\.0 .*it does not exist"):
        model_of().load_weights(tmp_path / "copy0.weights.h5")


def remove(path: Path) -> None:
    shutil.rmtree(f"{path}.rows")


def replace_by_another(path: Path) -> None:
    other = path.with_name("other.keras")
    saved_model(other)
    remove(path)
    Path(f"{other}.rows").rename(f"{path}.rows")


def lose_a_file(path: Path) -> None:
    next(Path(f"{path}.rows", "save-000001.0").glob("rows.*")).unlink()


def lose_the_manifest(path: Path) -> None:
    Path(f"{path}.rows", "save-000001.0", "manifest.json").unlink()


@pytest.mark.parametrize(
    ("breaking", "kind", "message"),
    [
        (remove, SnapshotError, r"next to it .*expected at .*save-000001\.0; it does not exist"),
        (replace_by_another, SnapshotError, r"found .*save-000001\.0 of another save"),
        (lose_a_file, SnapshotDamagedError, r"rows\.rows\..* is missing"),
        (lose_the_manifest, SnapshotError, "does not exist|manifest"),
    ],
)
def test_a_file_without_its_own_rows_is_rejected_and_changes_nothing(
    breaking: Callable[[Path], None],
    kind: type[SparringError],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "model.keras"
    saved_model(path)
    breaking(path)
    with pytest.raises(ValueError, match=message):
        keras.models.load_model(path)
    other = model_of()
    other.fit(IDS[:7], TARGETS[:7], verbose=0)
    before = other.layers[0](IDS)
    raised: list[Exception] = []
    load = keras_rows.load_rows

    def remembering(*given: Any) -> None:
        try:
            load(*given)
        except Exception as error:
            raised.append(error)
            raise

    monkeypatch.setattr("sparring_tf.layers.table_layer.load_rows", remembering)
    with pytest.raises(ValueError, match=message):
        other.load_weights(path)
    # Keras replaces it by a ValueError with our complete text.
    assert type(raised[0]) is kind
    assert np.array_equal(other.layers[0](IDS), before)
    assert other.layers[0].num_rows() == {"rows": 7}


def test_damage_during_a_read_is_reported_and_an_intact_file_repairs_it(
    tmp_path: Path,
) -> None:
    model = saved_model(tmp_path / "good.keras")
    saved_model(tmp_path / "bad.keras")
    file = next(Path(tmp_path, "bad.keras.rows", "save-000001.0").glob("rows.*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    other = model_of()
    with pytest.raises(ValueError, match=r"rows\.rows\."):
        other.load_weights(tmp_path / "bad.keras")
    other.load_weights(tmp_path / "good.keras")
    assert np.array_equal(other.predict(IDS, verbose=0), model.predict(IDS, verbose=0))


def test_rows_of_another_table_are_rejected_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.weights.h5"
    model = model_of()
    trained(model, 1)
    model.save_weights(path)
    cases = {
        "seed 0, but the layer's table has 3": {"seed": 3},
        "saved rows belong to table 'rows'": {"name": "others"},
    }
    for message, options in cases.items():
        with pytest.raises(ValueError, match=message):
            model_of(**options).load_weights(path)
    with pytest.raises(ValueError, match="state of 'Adam'"):
        model_of(keras.optimizers.Ftrl()).load_weights(path)


def test_rows_beyond_the_capacity_do_not_replace_existing_rows(tmp_path: Path) -> None:
    pytest.importorskip("sparring_hkv")
    path, storage = tmp_path / "large.weights.h5", {"backend": "hkv", "policy": "none"}
    large = model_of(storage=storage)
    trained(large, 1)
    rows = np.ones((5000, large.layers[0].agent.container.tables["rows"].width), np.float32)
    large.layers[0].agent.container.storage("rows").upsert(np.arange(5000), rows)
    large.save_weights(path)
    small = model_of(storage=storage, vocabulary_size=10)
    small.fit(IDS[:3], TARGETS[:3], verbose=0)
    with pytest.raises(ValueError, match="5,020 rows were saved"):
        small.load_weights(path)
    assert small.layers[0].num_rows() == {"rows": 3}


@pytest.mark.parametrize(
    "change",
    [
        {"folder": ".."},
        {"folder": "/etc"},
        {"folder": "a/b"},
        {"folder": ""},
        {"folder": "a\0b"},
        {"name": "../save-000001.0"},
        {"name": "save-000001.0/.."},
        {"table": 3},
        {"more": "x"},
    ],
)
def test_locations_that_are_not_next_to_the_file_are_rejected(change: dict[str, Any]) -> None:
    whole = {"folder": "m.rows", "name": "save-000001.0", "manifest_hash": "x", "table": "rows"}
    assert parse_sidecar_rows(whole, "rows").as_dict() == whole
    for plain in ({**whole, **change}, {}, None):
        with pytest.raises(DataError, match="location of the rows of table 'rows' is invalid"):
            parse_sidecar_rows(plain, "rows")


def test_a_sidecar_without_a_local_file_is_rejected(tmp_path: Path) -> None:
    model = model_of()
    trained(model, 1)
    with pytest.raises(UnsupportedError, match="an open file"):
        model.layers[0].save_own_variables({})
    with (
        (tmp_path / "open.keras").open("wb") as file,
        pytest.raises(UnsupportedError, match="open"),
    ):
        keras.src.saving.saving_lib.save_model(model, file)
    for path, kind in (("memory://m.keras", UnsupportedError), ("m.h5", InvalidArgumentError)):
        with pytest.raises(kind, match="save_model"):
            save_model(model, path)


class Stop(BaseException):
    """Ends a save like a signal."""


@pytest.mark.parametrize("kind", [Stop, OSError])
def test_a_failed_save_keeps_the_old_file_and_its_rows(
    kind: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model = tmp_path / "model.keras", model_of()
    expected = trained(model, 1)
    save_model(model, path)
    trained(model, 1)

    def broken(*_: object) -> None:
        raise kind("stopped")

    with monkeypatch.context() as patched:
        patched.setattr(model.optimizer, "save_own_variables", broken)
        for _ in range(3):  # each leaves a snapshot that no file refers to
            with pytest.raises(kind, match="stopped"):
                save_model(model, path)
    assert names_in(tmp_path) == ["model.keras", "model.keras.rows"]
    loaded = keras.models.load_model(path)
    assert np.array_equal(loaded.predict(np.concatenate([IDS, [999]]), verbose=0), expected)
    save_model(model, path)
    assert len(saves(path)) == 2
