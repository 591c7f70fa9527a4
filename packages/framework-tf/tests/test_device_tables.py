"""Tables on an emulated device: Keras layers access them through the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparring_testing.devices import why_unavailable

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

import keras

from sparring_tf.layers.embedding_bag import EmbeddingBag
from sparring_tf.optim.optimizer import Optimizer

pytestmark = pytest.mark.skipif(
    why_unavailable("emulated") is not None, reason=str(why_unavailable("emulated"))
)
IDS = np.arange(24, dtype=np.int64).reshape(8, 3) * 10**15


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "update method": lambda layer: Optimizer(layer, "rowwise_adagrad", learning_rate=0.1),
    "Keras's own": lambda layer: Optimizer(layer, keras.optimizers.Adam(0.1)),
}


def trained(storage: dict[str, Any], optimizer: Callable[[Any], Any]) -> Any:
    """Embeddings after some steps."""
    layer = EmbeddingBag(4, name="items", storage=storage)
    chosen = optimizer(layer)
    for step in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(layer(tf.constant(IDS + step))))
        variables = layer.trainable_variables
        chosen.apply(tape.gradient(loss, variables), variables)
    return layer(tf.constant(IDS)).numpy()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_on_a_device_equal_the_cpu(name: str) -> None:
    ours = trained({"backend": "hkv", "device": "emulated"}, OPTIMIZERS[name])
    keras.backend.clear_session(free_memory=False)
    assert np.array_equal(ours, trained({"backend": "hkv"}, OPTIMIZERS[name]))
