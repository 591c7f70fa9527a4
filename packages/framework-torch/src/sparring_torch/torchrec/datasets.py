"""Column names of public data sets, and random batches."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

import torch
from torch.utils.data import IterableDataset

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.models import Batch

__all__ = [
    "CAT_FEATURE_COUNT",
    "DAYS",
    "DEFAULT_CAT_NAMES",
    "DEFAULT_COLUMN_NAMES",
    "DEFAULT_INT_NAMES",
    "DEFAULT_LABEL_NAME",
    "DEFAULT_MOVIES_COLUMN_NAMES",
    "DEFAULT_RATINGS_COLUMN_NAMES",
    "INT_FEATURE_COUNT",
    "TOTAL_TRAINING_SAMPLES",
    "RandomRecDataset",
]

INT_FEATURE_COUNT = 13
"""Number of dense features in the Criteo click logs."""
CAT_FEATURE_COUNT = 26
"""Number of sparse features in the Criteo click logs."""
DAYS = 24
"""Number of files of the Criteo Terabyte click logs."""
TOTAL_TRAINING_SAMPLES = 4_195_197_692
"""Number of examples in all but the last of these files."""
DEFAULT_LABEL_NAME = "label"
DEFAULT_INT_NAMES = [f"int_{number}" for number in range(INT_FEATURE_COUNT)]
DEFAULT_CAT_NAMES = [f"cat_{number}" for number in range(CAT_FEATURE_COUNT)]
DEFAULT_COLUMN_NAMES = [DEFAULT_LABEL_NAME, *DEFAULT_INT_NAMES, *DEFAULT_CAT_NAMES]
DEFAULT_RATINGS_COLUMN_NAMES = ["userId", "movieId", "rating", "timestamp"]
"""Columns of MovieLens' ratings.csv."""
DEFAULT_MOVIES_COLUMN_NAMES = ["movieId", "title", "genres"]
"""Columns of MovieLens' movies.csv."""


class RandomRecDataset(IterableDataset[Batch]):
    """Random batches with random labels.

    A number of batches is generated once and repeated.

    Args:
        keys: names of the sparse features.
        batch_size: number of examples per batch.
        hash_size: upper bound of the ids of each feature; 100 if `hash_sizes` is not given either.
        hash_sizes: upper bounds by feature.
        ids_per_feature: maximum number of ids per bag; 2 if `ids_per_features` is not given either.
        ids_per_features: maximum numbers by feature.
        num_dense: number of dense features.
        manual_seed: seed of the batches; None uses torch's default generator.
        num_batches: number of batches per iterator; None means no end.
        num_generated_batches: number of batches that are generated.
        min_ids_per_feature: minimum number of ids per bag; None means the maximum.
        min_ids_per_features: minimum numbers by feature.

    Raises:
        InvalidArgumentError: both one number and numbers by feature are given, there is not one number
            per feature, or a number is out of range.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - TorchRec's arguments
        self,
        keys: Sequence[str],
        batch_size: int,
        hash_size: int | None = None,
        hash_sizes: Sequence[int] | None = None,
        ids_per_feature: int | None = None,
        ids_per_features: Sequence[int] | None = None,
        num_dense: int = 50,
        manual_seed: int | None = None,
        num_batches: int | None = None,
        num_generated_batches: int = 10,
        min_ids_per_feature: int | None = None,
        min_ids_per_features: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self._keys, self._batch_size, self._num_dense = list(keys), batch_size, num_dense
        self._sizes = self._numbers("hash_size", hash_size, hash_sizes, [100] * len(keys))
        self._most = self._numbers(
            "ids_per_feature", ids_per_feature, ids_per_features, [2] * len(keys)
        )
        self._fewest = self._numbers(
            "min_ids_per_feature", min_ids_per_feature, min_ids_per_features, self._most
        )
        if num_generated_batches < 1 or min(self._sizes, default=1) < 1:
            raise InvalidArgumentError(
                "RandomRecDataset: hash sizes and num_generated_batches must be at least 1, found "
                f"{self._sizes} and {num_generated_batches}"
            )
        self._num_batches = sys.maxsize if num_batches is None else num_batches
        generator = None
        if manual_seed is not None:
            generator = torch.Generator().manual_seed(manual_seed)
        num_made = min(num_generated_batches, self._num_batches)
        self._batches = [self._random_batch(generator) for _ in range(num_made)]

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches repeatedly."""
        return islice(cycle(self._batches), self._num_batches)

    def __len__(self) -> int:
        """Returns the number of batches per iterator."""
        return self._num_batches

    def _numbers(
        self, name: str, one: int | None, each: Sequence[int] | None, default: list[int]
    ) -> list[int]:
        if one is not None and each is not None:
            raise InvalidArgumentError(
                f"RandomRecDataset: found both {name} and {name}s; give only one"
            )
        found = list(each) if each is not None else default
        found = found if one is None else [one] * len(self._keys)
        if len(found) != len(self._keys) or min(found, default=0) < 0:
            raise InvalidArgumentError(
                f"RandomRecDataset: {name}s must have one number from 0 for each of {len(self._keys)} "
                f"features, found {found}"
            )
        return found

    def _random_batch(self, generator: torch.Generator | None) -> Batch:
        values, lengths = [], []
        for size, fewest, most in zip(self._sizes, self._fewest, self._most, strict=True):
            own = torch.randint(fewest, most + 1, (self._batch_size,), generator=generator)
            lengths.append(own)
            values.append(torch.randint(size, (int(own.sum()),), generator=generator))
        features = KeyedJaggedTensor(
            self._keys,
            torch.cat(values) if values else torch.empty(0, dtype=torch.int64),
            lengths=torch.cat(lengths) if lengths else torch.empty(0, dtype=torch.int64),
        )
        numbers = torch.randn(self._batch_size, self._num_dense, generator=generator)
        labels = torch.randint(2, (self._batch_size,), generator=generator)
        return Batch(numbers, features, labels)
