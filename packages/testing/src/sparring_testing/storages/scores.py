"""Tests of scores that the caller sets, for storages that support them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from sparring.contracts import Keys, Storage
from sparring.errors import InvalidArgumentError
from sparring_testing.references.samples import distinct_keys, random_rows, read_contents

__all__ = ["ScoreTests"]


class ScoreTests:
    """A scan returns the scores that the caller set."""

    def test_given_scores_are_stored(
        self, given_scores_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage = given_scores_storage
        keys = distinct_keys(rng, 20)
        rows = random_rows(rng, 20, storage.table)
        scores = rng.integers(1, 2**64, 20, np.uint64)
        scores[0], scores[1] = 0, 2**64 - 1
        storage.upsert(keys, rows, scores)
        assert _scores(storage, keys) == scores.tolist()
        storage.upsert(keys[:5], rows[:5], scores[5:10])
        assert _scores(storage, keys[:5]) == scores[5:10].tolist()

    def test_upsert_without_scores_keeps_the_scores_of_known_keys(
        self, given_scores_storage: Storage, rng: np.random.Generator
    ) -> None:
        storage = given_scores_storage
        keys = distinct_keys(rng, 20)
        rows = random_rows(rng, 20, storage.table)
        storage.upsert(keys[:10], rows[:10], np.arange(100, 110))
        storage.upsert(keys, rows)
        assert _scores(storage, keys) == [*range(100, 110), *[0] * 10]

    @pytest.mark.parametrize("scores", [[1], [1, 2, 3], [[1, 2]], [1.0, 2.0], [-1, 2], ["1", "2"]])
    def test_invalid_scores_are_rejected_and_change_nothing(
        self, given_scores_storage: Storage, rng: np.random.Generator, scores: npt.ArrayLike
    ) -> None:
        storage = given_scores_storage
        rows = random_rows(rng, 2, storage.table)
        storage.upsert([1, 2], rows, [5, 6])
        before = read_contents(storage)
        with pytest.raises(InvalidArgumentError):
            storage.upsert([1, 3], rows, scores)
        assert read_contents(storage) == before


def _scores(storage: Storage, keys: Keys) -> list[int]:
    held = read_contents(storage)
    return [held[key].score for key in keys.tolist()]
