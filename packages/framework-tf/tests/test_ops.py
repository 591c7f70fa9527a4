"""The ops refuse what does not fit, instead of reading what is not theirs."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)

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
        ("gradient", tf.ones([2, 4]), "as many dims as the gradient"),
        ("gradient", tf.ones([2, 6]), "as many dims as the gradient"),
        ("ids", tf.constant([1, 2], tf.int64), "found 2 ids"),
        ("lengths", tf.constant([[1, 1]], tf.int64), "lengths"),
        ("lengths", tf.constant([[3, -1], [0, 1]], tf.int64), "not those of the lengths"),
        ("lengths", tf.constant([[1, 1], [2**62, 1]], tf.int64), "not those of the lengths"),
        ("weights", tf.ones([2]), "2 weights"),
        ("anchors", [tf.zeros([0]), tf.zeros([0, 3])], r"must be|rank"),
    ],
)
def test_what_does_not_fit_the_lengths_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops().sparring_spread(**{**WHOLE, name: value})
