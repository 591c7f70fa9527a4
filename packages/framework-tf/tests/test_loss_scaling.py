"""Under the policy mixed_float16, losses are scaled by Keras's wrapper or by ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring_testing.processes.table_steps import read_tables
from sparring_tf.layers.embedding import Embedding
from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.optim.loss_scaling import LossScaleOptimizer
from sparring_tf.optim.optimizer import Optimizer

IDS = np.arange(16, dtype=np.int64) * 10**15 - 7
TARGETS = (np.arange(16) % 3).astype(np.float32)[:, None]


@pytest.fixture(autouse=True)
def mixed_float16() -> Iterator[None]:
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy(before)


def made(sparse: Any, wrap: Callable[[Any], Any], **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    ids = keras.Input((), dtype="int64")
    single = Embedding(4, name="single")(ids)
    pooled = EmbeddingBag(4, name="pooled")(keras.ops.expand_dims(ids, 1))
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Add()([single, pooled])))
    model.compile(optimizer=wrap(Optimizer(model, sparse, **options)), loss="mse")
    return model


def plain(optimizer: Any) -> Any:
    return optimizer


SPARSE: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "native": lambda: (keras.optimizers.Adam(0.05), {}),
    "fused": lambda: ("adagrad", {"learning_rate": 0.05, "dense": keras.optimizers.SGD(0.1)}),
}


@pytest.mark.parametrize("kind", SPARSE)
@pytest.mark.parametrize("wrap", [plain, keras.optimizers.LossScaleOptimizer])
def test_the_wrapper_of_keras_scales_like_ours(kind: str, wrap: Callable[[Any], Any]) -> None:
    found = []
    for each in (wrap, LossScaleOptimizer):
        sparse, options = SPARSE[kind]()
        model = made(sparse, each, **options)
        assert type(model.optimizer) is LossScaleOptimizer
        model.fit(IDS, TARGETS, batch_size=4, shuffle=False, epochs=3, verbose=0)
        scaling = float(model.optimizer.dynamic_scale), int(model.optimizer.iterations)
        found.append(
            (
                read_tables(model.optimizer.inner_optimizer.container),
                scaling,
                model.predict(IDS, verbose=0),
            )
        )
    assert sum(map(len, found[0][0].values())) == 2 * len(IDS)
    assert found[0][:2] == found[1][:2]
    assert np.array_equal(found[0][2], found[1][2])


def test_scaling_does_not_change_rows() -> None:
    """Powers of two cancel exactly if no gradient exceeds the range of float16."""
    found = []
    for scale in (1.0, 2.0**7):
        model = made(
            keras.optimizers.SGD(0.5),
            lambda inner, s=scale: LossScaleOptimizer(inner, initial_scale=s),
        )
        model.fit(IDS, TARGETS, shuffle=False, epochs=2, verbose=0)
        found.append(model.predict(IDS, verbose=0))
    assert np.array_equal(found[0], found[1])


def test_a_step_that_overflows_changes_nothing_but_the_scale() -> None:
    model = made(keras.optimizers.SGD(0.1), plain)
    model.fit(IDS[:8], TARGETS[:8], batch_size=8, verbose=0)
    before = read_tables(model.optimizer.inner_optimizer.container)
    dense = [each.numpy() for each in model.layers[-1].trainable_variables]
    # Gradients of such large losses are infinite in float16.
    model.fit(IDS, TARGETS * 1e6, batch_size=16, verbose=0)
    assert read_tables(model.optimizer.inner_optimizer.container) == before
    for variable, value in zip(model.layers[-1].trainable_variables, dense, strict=True):
        assert np.array_equal(variable.numpy(), value)
    assert float(model.optimizer.dynamic_scale) == 2.0**14
    assert int(model.optimizer.iterations) == 1
    model.fit(IDS, TARGETS, batch_size=16, verbose=0)
    assert sum(
        map(len, read_tables(model.optimizer.inner_optimizer.container).values())
    ) == 2 * len(IDS)


def test_an_optimizer_that_was_built_before_is_accepted() -> None:
    layer = Embedding(4, name="rows")
    model = keras.Sequential([keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)])
    optimizer = Optimizer(model, keras.optimizers.SGD(0.1))
    optimizer.build(model.trainable_variables)
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(IDS, TARGETS, verbose=0)
    assert layer.num_rows() == {"rows": len(IDS)}


@pytest.mark.parametrize("wrap", [plain, lambda each: LossScaleOptimizer(each, initial_scale=4.0)])
def test_loss_scaling_is_restored_from_a_file(wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    model = made(keras.optimizers.Adam(0.05), wrap)
    model.fit(IDS, TARGETS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is LossScaleOptimizer
    for each in (model, loaded):
        each.fit(IDS, TARGETS, shuffle=False, verbose=0)
    assert read_tables(model.optimizer.inner_optimizer.container) == read_tables(
        loaded.optimizer.inner_optimizer.container
    )
