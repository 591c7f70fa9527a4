"""The ops reject invalid inputs instead of reading outside of them."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

from sparring_tf.layers.embedding import Embedding
from sparring_tf.op_library import ops

WHOLE: dict[str, Any] = {
    "gradient": tf.ones([2, 5]),
    "ids": tf.constant([1, 2, 3], tf.int64),
    "lengths": tf.constant([[1, 1], [0, 1]], tf.int64),
    "weights": tf.zeros([0]),
    "anchors": [tf.zeros([0, 2]), tf.zeros([0, 3])],
}


def test_a_gradient_is_spread_over_the_ids_of_each_feature() -> None:
    spread = ops().sparring_spread(**WHOLE)
    assert [each.numpy().tolist() for each in spread.own_ids] == [[1, 2], [3]]
    assert [tuple(each.shape) for each in spread.values] == [(2, 2), (1, 3)]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gradient", tf.ones([10]), "gradient must be"),
        ("gradient", tf.ones([3, 5]), "gradient must be"),
        ("gradient", tf.ones([2, 4]), "anchors must be"),
        ("gradient", tf.ones([2, 6]), "anchors must be"),
        ("ids", tf.constant([1, 2], tf.int64), "found 2 ids"),
        ("lengths", tf.constant([[1, 1]], tf.int64), "lengths"),
        ("lengths", tf.constant([[3, -1], [0, 1]], tf.int64), "of the lengths"),
        ("lengths", tf.constant([[1, 1], [2**62, 1]], tf.int64), "of the lengths"),
        ("weights", tf.ones([2]), "2 weights"),
        ("anchors", [tf.zeros([0]), tf.zeros([0, 3])], r"must be|rank"),
    ],
)
def test_inputs_that_do_not_match_the_lengths_are_rejected(
    name: str, value: Any, message: str
) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops().sparring_spread(**{**WHOLE, name: value})


@pytest.mark.alone
def test_lookups_run_while_another_thread_keeps_the_lock_of_python() -> None:
    """A graph records when it looks up, while this thread sleeps and keeps Python's lock."""
    pytest.importorskip("sparring_hkv")
    layer = Embedding(16, storage="hkv")
    ids = tf.range(10_000, dtype=tf.int64)
    layer(ids)

    @tf.function
    def look_up(wait: Any) -> Any:
        # Keeps the graph busy until the lock is taken: a chain that cannot be optimized away.
        spun = square
        for _ in tf.range(wait):
            spun = tf.linalg.matmul(spun, square) / 400
        with tf.control_dependencies([spun]):
            begin = tf.timestamp()
        with tf.control_dependencies([begin]):
            found = layer(ids)
        with tf.control_dependencies([found]):
            return begin, tf.timestamp()

    square = tf.ones([400, 400])
    look_up(tf.constant(2))
    kept: dict[str, Any] = {}
    keep_lock_for = ctypes.PyDLL(None).usleep
    # On a busy machine the lookup may start too early or too late; a lookup with the lock is always late.
    for _ in range(4):
        thread = threading.Thread(target=lambda: kept.update(times=look_up(tf.constant(300))))
        thread.start()
        time.sleep(0.05)
        begin = time.time()
        keep_lock_for(3_000_000)
        thread.join(60)
        begun, done = (float(each) for each in kept.pop("times"))
        # Not only after the lock was released.
        if begin < begun <= done < begin + 2.5:
            break
    else:
        pytest.fail("it needed the interpreter's lock")
