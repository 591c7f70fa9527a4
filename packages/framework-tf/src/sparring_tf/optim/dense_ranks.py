"""Broadcasts ordinary variables to all ranks, averages their gradients over ranks, and gathers
tensors of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sparring import StepContainer
from sparring.contracts import Collective, Reduction
from sparring_tf.lookup.exchanged_lookup import run_in_order

__all__ = ["average_gradients", "broadcast", "gather_over_ranks"]


def broadcast(variables: Sequence[Any], collective: Collective) -> None:
    """Assigns the values of rank 0 on all ranks. All ranks call it with the same variables.

    Args:
        variables: variables with the same shapes on all ranks.
        collective: the collective of this rank.
    """
    if collective.world_size == 1:
        return
    with tf.init_scope():
        for variable in variables:
            mine = np.ascontiguousarray(variable.numpy())
            sent = (
                mine.reshape(-1).view(np.uint8) if collective.rank == 0 else np.empty(0, np.uint8)
            )
            first = collective.all_gather(sent)[0]
            variable.assign(np.frombuffer(first.tobytes(), mine.dtype).reshape(mine.shape))


def average_gradients(
    gradients: Sequence[Any], collective: Collective, wait: Callable[[], None]
) -> list[Any]:
    """Returns pairs of gradient and variable, with gradients averaged over all ranks.

    Args:
        gradients: pairs of gradient and variable. All ranks pass the same variables. If the
            gradient of a variable is None on one rank, it must be None on all ranks.
        collective: the collective of this rank.
        wait: waits until the collective is not in use. It is called before each use.
    """
    pairs = list(gradients)
    known = [place for place, (gradient, _) in enumerate(pairs) if gradient is not None]
    if collective.world_size == 1 or not known:
        return pairs
    dense = [tf.convert_to_tensor(pairs[place][0]) for place in known]
    # float64 represents every gradient exactly, so one exchange is enough for all dtypes.
    joined = tf.concat([tf.reshape(tf.cast(each, tf.float64), [-1]) for each in dense], 0)

    def mean(values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        wait()
        return [collective.all_reduce(np.ascontiguousarray(values), Reduction.MEAN)]

    (found,) = run_in_order(mean, [joined], [tf.float64])
    parts = tf.split(found, [each.shape.num_elements() for each in dense])
    for place, own, part in zip(known, dense, parts, strict=True):
        pairs[place] = (tf.reshape(tf.cast(part, own.dtype), own.shape), pairs[place][1])
    return pairs


def gather_over_ranks(tensor: Any, container: StepContainer) -> Any:
    """Concatenates tensors of all ranks. All ranks call it, and trace calls in graphs in the same order.

    The gradient is summed over ranks, and each rank gets the gradient of its own part.

    Args:
        tensor: ``(n, …)``; n may differ between ranks and may be 0.
        container: the container of the ranks.
    """
    collective = container.collective
    if collective.world_size == 1:
        return tensor

    def all_parts(own: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        container.quiesce()
        parts = collective.all_gather(np.ascontiguousarray(own))
        first = sum(len(part) for part in parts[: collective.rank])
        return [np.concatenate(parts), np.array(first, np.int64)]

    def summed(gradient: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        container.quiesce()
        return [collective.all_reduce(np.ascontiguousarray(gradient))]

    @tf.custom_gradient  # type: ignore[untyped-decorator,unused-ignore]
    def gathered(own: Any) -> Any:
        whole, first = run_in_order(all_parts, [own], [own.dtype, tf.int64])
        whole = tf.ensure_shape(whole, [None, *own.shape[1:]])
        count = tf.shape(own, tf.int64)[0]

        def gradient(upstream: Any) -> Any:
            (total,) = run_in_order(summed, [upstream], [upstream.dtype])
            return tf.ensure_shape(total[first : first + count], own.shape)

        return whole, gradient

    return gathered(tensor)
