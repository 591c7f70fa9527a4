"""Checks before the first step that a model returns what the evaluation needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparring.errors import ConfigError
from sparring_train.loop.model import Predict
from sparring_train.run.ranks import Ranks

__all__ = ["check_outputs"]


def check_outputs(
    batches: Iterator[Any],
    predict: Predict,
    ranks: Ranks,
    *,
    kind: str,
    has_vectors: bool,
) -> Iterator[Any]:
    """Yields batches, after predictions for the first one were checked. All ranks call it.

    A model with its own loss could otherwise train to the end, and fail in the evaluation.

    Args:
        batches: whole batches.
        predict: computes predictions for this rank's part of a batch.
        ranks: ranks of the run.
        kind: kind of the model, for the message.
        has_vectors: whether predictions are pairs of vectors, ``(2, b, dim)``, not ``(b,)``.

    Raises:
        ConfigError: predictions have another shape.
    """
    for number, batch in enumerate(batches):
        if number == 0:
            part = ranks.part(batch)
            found = tuple(predict(part).shape)
            _check(found, len(part), kind, has_vectors=has_vectors)
        yield batch


def _check(found: tuple[int, ...], count: int, kind: str, *, has_vectors: bool) -> None:
    if has_vectors:
        is_good = len(found) == 3 and found[:2] == (2, count)
        expected = f"two vectors per example, ({count}, dim) each"
        fix = "return a user vector and an item vector"
    else:
        is_good = found == (count,)
        expected = f"one number per example, ({count},) or ({count}, 1)"
        fix = "return the output to evaluate from the model, and compute the others in its training_loss"
    if not is_good:
        raise ConfigError(
            f"model.kind: {kind} returned predictions of shape {found} for {count} examples, expected "
            f"{expected}; {fix}",
            setting="model.kind",
        )
