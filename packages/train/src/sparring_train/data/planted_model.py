"""The click model that generates the synthetic log.

The ids of a feature follow a power law of their popularity ranks (a Pareto distribution, truncated and
rounded down). The logit of a click is a sum of weights of the more popular ids, of smooth effects of the
integers, and of products of weights of a few pairs of features. It depends only on columns of the log,
so that the model's probabilities are the best possible predictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError
from sparring_train.data.click_log import ClickLog
from sparring_train.data.criteo_format import (
    MISSING_IDS,
    NUM_FEATURES,
    NUM_INTEGERS,
    transform_integers,
)

__all__ = ["CHUNK_ROWS", "PlantedModel", "SyntheticPart"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
SyntheticPart = Literal["train", "test", "validation"]

CHUNK_ROWS = 1 << 15
"""Rows that are generated together; each chunk has a separate random number generator."""

_VARIETY = (
    0.52, 0.46, 1.00, 0.93, 0.41, 0.22, 0.68, 0.46, 0.08, 0.78, 0.62, 0.97, 0.58,
    0.23, 0.67, 0.95, 0.17, 0.60, 0.55, 0.10, 0.96, 0.20, 0.19, 0.83, 0.32, 0.80,
)  # fmt: skip
"""Feature f has ``max_ids ** _VARIETY[f]`` distinct ids."""

_NUM_WEIGHTED = 30  # Number of popular ids of a feature that have a weight; it is 0 for the others.
_LEFT, _RIGHT = [8, 5, 16, 4], [19, 13, 21, 22]  # Pairs of features whose weights are multiplied.
_NUM_EFFECTIVE = 6  # Number of integers that influence a click.
_VARIANCE_OF_WEIGHTS, _VARIANCE_OF_EFFECTS, _VARIANCE_OF_PAIRS = 0.82, 0.14, 0.04
_LOGIT_DEVIATION = 1.7
_CLICK_RATE = 0.25
_CALIBRATION_ROWS = 1 << 15
_STREAMS = {"parameters": 0, "calibration": 1, "train": 2, "test": 3, "validation": 4}


@dataclass(frozen=True, slots=True)
class _Columns:
    """Inputs of the logit."""

    ranks: Ints
    """``(n, 26)``: popularity of the id, 0 for the most popular one; -1 if missing."""
    integers: Ints
    is_missing_integer: Flags


class PlantedModel:
    """Generator of click logs of any length from one set of parameters.

    Args:
        seed: determines the parameters and every row; any integer.
        skew: exponent of the power law of ids, from 0 (uniform) to 4.
        max_ids: number of distinct ids of the feature that has the most, 2 to 2**32.
        missing_fraction: mean fraction of integers and of ids that are missing, 0 to 0.5.

    Raises:
        InvalidArgumentError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        skew: float = 1.2,
        max_ids: int = 30_000,
        missing_fraction: float = 0.05,
    ) -> None:
        _check_range("skew", skew, 0, 4)
        _check_range("max_ids", max_ids, 2, 2**32)
        _check_range("missing_fraction", missing_fraction, 0, 0.5)
        self.options: Mapping[str, int | float] = {
            "seed": seed,
            "skew": skew,
            "max_ids": max_ids,
            "missing_fraction": missing_fraction,
        }
        self._seed = seed % 2**64
        self._skew = skew
        self.cardinalities = np.maximum(np.round(float(max_ids) ** np.array(_VARIETY)), 2).astype(
            np.int64
        )
        self._draw_parameters(missing_fraction)
        self._calibrate()

    def chunks(self, num_rows: int, part: SyntheticPart = "train") -> Iterator[ClickLog]:
        """Yields the first `num_rows` rows of one of three logs, `CHUNK_ROWS` at a time.

        A longer log starts with the rows of a shorter one.
        """
        _check_range("num_rows", num_rows, 0, 2**62)
        for number, begin in enumerate(range(0, num_rows, CHUNK_ROWS)):
            yield self._chunk(part, number, min(CHUNK_ROWS, num_rows - begin))

    def _random(self, stream: str, number: int = 0) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self._seed, _STREAMS[stream], number]))

    def _draw_parameters(self, missing_fraction: float) -> None:
        random = self._random("parameters")
        self._salts = random.integers(0, 2**32, NUM_FEATURES, np.uint64)
        self._missing_id = missing_fraction * random.uniform(0, 2, NUM_FEATURES)
        self._missing_integer = missing_fraction * random.uniform(0, 2, NUM_INTEGERS)
        self._location = random.uniform(0.5, 4.0, NUM_INTEGERS)
        self._spread = random.uniform(0.5, 1.5, NUM_INTEGERS)
        self._slopes = random.normal(size=_NUM_EFFECTIVE)
        self._curvatures = random.normal(size=_NUM_EFFECTIVE) * 0.3
        # Column 0 is the missing id, followed by ids by rank. The last column is 0, for all other ids.
        self._weights = random.normal(size=(NUM_FEATURES, _NUM_WEIGHTED + 2))
        self._weights[:, 1:-1] *= (1.0 + np.arange(_NUM_WEIGHTED)) ** -0.7
        self._weights[:, -1] = 0.0

    def _calibrate(self) -> None:
        """Scales the three sums to their share of the logit's variance, and sets the logit's mean."""
        random = self._random("calibration")
        columns = self._columns(random, _CALIBRATION_ROWS, _CALIBRATION_ROWS)
        shares = (_VARIANCE_OF_WEIGHTS, _VARIANCE_OF_EFFECTS, _VARIANCE_OF_PAIRS)
        self._scales = np.ones(3)
        deviations = self._sums(columns).std(axis=1)
        self._scales = _LOGIT_DEVIATION * np.sqrt(shares) / np.maximum(deviations, 1e-9)
        logits = self._sums(columns).sum(axis=0)
        low, high = -50.0, 50.0
        for _ in range(60):
            middle = (low + high) / 2
            is_below = _sigmoid(logits + middle).mean() < _CLICK_RATE
            low, high = (middle, high) if is_below else (low, middle)
        self._bias = low

    def _chunk(self, part: str, number: int, num_rows: int) -> ClickLog:
        random = self._random(part, number)
        # Always draws a whole chunk, so that a shorter log is a prefix of a longer one.
        columns = self._columns(random, CHUNK_ROWS, num_rows)
        probabilities = _sigmoid(self._sums(columns).sum(axis=0) + self._bias)
        is_click = random.random(CHUNK_ROWS)[:num_rows] < probabilities
        ids = _mix((columns.ranks.astype(np.uint64) ^ self._salts) & np.uint64(0xFFFFFFFF))
        return ClickLog(
            integers=columns.integers,
            is_missing_integer=columns.is_missing_integer,
            ids=np.where(columns.ranks < 0, MISSING_IDS, ids.view(np.int64)),
            labels=is_click.astype(np.float32),
            probabilities=probabilities,
        )

    def _columns(self, random: np.random.Generator, num_drawn: int, num_rows: int) -> _Columns:
        """Returns the first `num_rows` of `num_drawn` rows."""
        of_ids, of_integers = (num_drawn, NUM_FEATURES), (num_drawn, NUM_INTEGERS)
        ranks = self._ranks(random.random(of_ids)[:num_rows])
        ranks[random.random(of_ids)[:num_rows] < self._missing_id] = -1
        normal = random.normal(size=of_integers)[:num_rows]
        integers = np.exp(self._location + self._spread * normal).astype(np.int64)
        integers[:, 1] -= 2  # This column of Criteo's log may be negative.
        is_missing = random.random(of_integers)[:num_rows] < self._missing_integer
        return _Columns(ranks, np.where(is_missing, 0, integers), is_missing)

    def _ranks(self, uniform: Floats) -> Ints:
        """Inverts the distribution function of a Pareto distribution on [1, cardinality + 1)."""
        top = self.cardinalities + 1.0
        if abs(self._skew - 1) < 1e-6:
            places = top**uniform
        else:
            power = 1.0 - self._skew
            places = (1.0 + uniform * (top**power - 1.0)) ** (1.0 / power)
        return np.clip(places.astype(np.int64) - 1, 0, self.cardinalities - 1)

    def _sums(self, columns: _Columns) -> Floats:
        """Returns ``(3, n)``: the contributions of ids, integers and pairs of ids to the logit."""
        at = np.minimum(columns.ranks, _NUM_WEIGHTED) + 1
        weights = self._weights[np.arange(NUM_FEATURES), at]
        dense = transform_integers(columns.integers, columns.is_missing_integer)
        standard = (dense - self._location) / self._spread
        effective = standard[:, :_NUM_EFFECTIVE].astype(np.float64)
        effects = effective @ self._slopes + (np.cos(2 * effective)) @ self._curvatures
        products = (weights[:, _LEFT] * weights[:, _RIGHT]).sum(axis=1)
        sums: Floats = np.stack([weights.sum(axis=1), effects, products]) * self._scales[:, None]
        return sums


def _sigmoid(logits: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-logits))


def _mix(word: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Permutes the 32-bit numbers by MurmurHash3's finalizer (Appleby, 2011)."""
    mask = np.uint64(0xFFFFFFFF)
    word = ((word ^ (word >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & mask
    word = ((word ^ (word >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & mask
    mixed: npt.NDArray[np.uint64] = word ^ (word >> np.uint64(16))
    return mixed


def _check_range(what: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidArgumentError(f"{what}: found {value}, must be from {low} to {high}")
