"""Keras files that several ranks save and load together."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring import StepContainer, open_snapshot
from sparring.collective import coordinator
from sparring.errors import InvalidArgumentError, SnapshotError, UnsupportedError
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import read_rows
from sparring_tf.layers.embedding import Embedding
from sparring_tf.optim.optimizer import Optimizer
from sparring_tf.saving import saved_rows
from sparring_tf.saving.early_stopping import EarlyStopping
from sparring_tf.saving.model_files import save_model

IDS = np.arange(20, dtype=np.int64) * 10**15 - 7


@pytest.fixture(autouse=True)
def few_bytes_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_rows, "MAX_BYTES", 100)


def model_in(container: StepContainer, **options: Any) -> Any:
    """A model after one step; each of two ranks gets half of the batch."""
    layer = Embedding(4, name="rows", container=container, storage="memory", **options)
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.compile(optimizer=Optimizer(model, keras.optimizers.Adagrad(0.5)), loss="mse")
    step(model, container)
    return model


def step(model: Any, container: StepContainer) -> None:
    world_size = container.collective.world_size
    with tf.GradientTape() as tape:
        mine = tf.constant(IDS[container.collective.rank :: world_size])
        loss = tf.reduce_sum(model(mine) ** 2) * world_size
    variables = model.trainable_variables
    model.optimizer.apply(tape.gradient(loss, variables), variables)


@pytest.mark.parametrize("bests", [(0, 0), (0, 1)])
def test_ranks_restore_the_rows_of_the_best_epoch_or_all_raise(bests: tuple[int, int]) -> None:
    def body(container: StepContainer) -> Any:
        model = model_in(container)
        stopping = EarlyStopping(restore_best_weights=True, max_bytes=10_000)
        stopping.set_model(model)
        stopping.on_train_begin()
        found = []
        for epoch in range(2):
            loss = float(epoch != bests[container.collective.rank])
            stopping.on_epoch_end(epoch, {"val_loss": loss})
            found.append(read_rows(container, "rows"))
            step(model, container)
        try:
            stopping.on_train_end()
        except InvalidArgumentError as error:
            return str(error)
        return found[0], read_rows(container, "rows"), container.num_rows("rows")

    results = run_containers(2, body)
    if bests == (0, 0):
        assert all(expected == found and count for expected, found, count in results)
    else:
        assert all("different best epochs" in each for each in results)


def joined(parts: list[dict[int, bytes]]) -> dict[int, bytes]:
    return {key: row for part in parts for key, row in part.items()}


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_ranks_save_one_model_and_any_number_of_ranks_loads_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / name

    def save(container: StepContainer) -> dict[int, bytes]:
        model = model_in(container)
        for _ in range(2):
            save_model(model, path, max_bytes_inside=1 << 40)
        return read_rows(container, "rows")

    parts = run_containers(2, save)
    assert all(0 < len(part) < len(IDS) for part in parts)
    assert names_in(tmp_path) == [name, f"{name}.rows"]
    assert open_snapshot(f"{path}.rows/save-000002.0").world_size == 2

    def load(container: StepContainer) -> dict[int, bytes]:
        model = model_in(container)
        model.load_weights(path)
        return read_rows(container, "rows")

    for world_size in (1, 3):
        assert joined(run_containers(world_size, load)) == joined(parts)
    if name == "model.keras":
        layer = keras.models.load_model(path).layers[0]
        assert read_rows(layer.agent.container, "rows") == joined(parts)


def test_a_failure_on_one_rank_is_reported_on_all(tmp_path: Path) -> None:
    path = tmp_path / "model.weights.h5"

    def refused(call: Callable[[], object]) -> tuple[type[BaseException], str]:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - told below
            call()
        return type(caught.value), str(caught.value)

    def body(container: StepContainer) -> list[tuple[type[BaseException], str]]:
        model, rank = model_in(container), container.collective.rank
        found = [refused(lambda: model.save_weights(tmp_path / f"{rank}.weights.h5"))]
        found.append(refused(lambda: save_model(model, tmp_path / f"{rank}.weights.h5")))
        blocked = tmp_path / "file" / "model.weights.h5"
        found.append(refused(lambda: save_model(model, blocked)))
        save_model(model, path)
        container.collective.barrier()
        # A copy without its folder of rows.
        mine = path if rank == 0 else tmp_path / "elsewhere" / "model.weights.h5"
        if rank:
            shutil.copy(path, mine)
        found.append(refused(lambda: model.load_weights(mine)))
        return found

    (tmp_path / "file").write_text("no folder")
    (tmp_path / "elsewhere").mkdir()
    first, second = run_containers(2, body)
    for told in (first, second):
        assert told[0][0] is UnsupportedError
        assert "call sparring_tf.save_model(model, path) on all of them" in told[0][1]
        assert told[1][0] is InvalidArgumentError
        assert "ranks save a model to different paths" in told[1][1]
        assert issubclass(told[2][0], (SnapshotError, OSError))
    assert "it does not exist" in second[3][1]
    assert "rank 1" in first[3][1]


def test_ranks_save_and_load_during_another_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "_HEARTBEAT_SECONDS", 0.05)
    url, path = str(tmp_path / "snapshot"), tmp_path / "model.weights.h5"

    def body(container: StepContainer) -> dict[int, bytes]:
        model, rank = model_in(container), container.collective.rank
        storage = container.storage("rows")
        restore = storage._restore_impl

        def slowly(*given: Any) -> Any:
            time.sleep(0.5 * rank)
            return restore(*given)

        monkeypatch.setattr(storage, "_restore_impl", slowly)
        container.save(url)
        before = read_rows(container, "rows")
        for call in (lambda: save_model(model, path), lambda: model.load_weights(path)):
            loading = container.load(url, blocking=False)
            # Without the wait, the other rank would receive messages of this load.
            time.sleep(0.2 * rank)
            call()
            assert loading.result().rows == {"rows": len(before)}
        assert read_rows(container, "rows") == before
        return before

    parts = run_containers(2, body)
    assert all(0 < len(part) < len(IDS) for part in parts)


def model_of_both(shared: StepContainer, own: StepContainer) -> Any:
    """The first table is only on this rank."""
    ids = keras.Input((), dtype="int64")
    layers = [
        Embedding(4, name=name, container=container, storage="memory")
        for name, container in (("own", own), ("rows", shared))
    ]
    return keras.Model(ids, keras.layers.Add()([each(ids) for each in layers]))


@pytest.mark.parametrize("num_first", [3, 30], ids=["inside", "beside"])
def test_the_first_ranks_rows_of_separate_containers_are_saved(
    num_first: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.weights.h5"

    def body(shared: StepContainer) -> tuple[int, float]:
        rank = shared.collective.rank
        with StepContainer() as own:
            model = model_of_both(shared, own)
            keys = np.arange(40 if rank else num_first)
            own.storage("own").upsert(keys, np.full((len(keys), 4), 1.0 + rank, np.float32))
            save_model(model, path)
            model.load_weights(path)
            rows = next(iter(own.storage("own").scan())).rows
            return own.num_rows("own"), float(rows.mean())

    assert run_containers(2, body) == [(num_first, 1.0)] * 2
    places = ["save-000001.1"] if num_first == 3 else ["save-000001.0", "save-000001.1"]
    assert names_in(Path(f"{path}.rows")) == places


def test_a_failed_save_of_the_first_ranks_container_is_reported_on_all(tmp_path: Path) -> None:
    path = tmp_path / "model.weights.h5"

    def body(shared: StepContainer) -> str:
        with StepContainer() as own:
            model = model_of_both(shared, own)
            if shared.collective.rank == 0:
                own.storage("own").upsert(np.arange(40), np.ones((40, 4), np.float32))
                own.save = refuse  # type: ignore[method-assign]
            with pytest.raises(SnapshotError, match="no room") as caught:
                save_model(model, path)
            return str(caught.value)

    def refuse(*_: object, **__: object) -> Any:
        raise SnapshotError("no room")

    first, second = run_containers(2, body)
    assert first == "no room"
    assert "rank 0" in second
    assert not path.exists()
