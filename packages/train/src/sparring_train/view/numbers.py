"""Numbers about rows: norms, histograms, and coordinates for a map of embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError, UnsupportedError

__all__ = [
    "Floats",
    "Histogram",
    "MapMethod",
    "NumberSummary",
    "compute_norms",
    "has_umap",
    "map_points",
    "summarize_numbers",
]

Floats = npt.NDArray[np.float64]
MapMethod = Literal["pca", "umap"]

_NUM_BINS = 30
_LOGARITHMIC_RATIO = 50.0
"""Positive numbers are counted in logarithmic bins if the largest is this many times the median."""
_NUM_NEIGHBORS = 15
_SEED = 7


def compute_norms(embeddings: npt.NDArray[Any]) -> Floats:
    """Returns the Euclidean norms of embeddings ``(n, dim)``, in float64 because squares may overflow."""
    wide = embeddings.astype(np.float64)
    norms: Floats = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    return norms


class Histogram:
    """Counts of numbers in bins that a sample of the numbers determines.

    Numbers below the first or above the last bin are counted in these bins.

    Args:
        sample: Some of the numbers, ``(n,)``.
    """

    def __init__(self, sample: Floats) -> None:
        finite = sample[np.isfinite(sample)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
        is_logarithmic = low > 0 and high > _LOGARITHMIC_RATIO * float(np.median(finite))
        if high <= low:
            low, high = low - 0.5, high + 0.5
        make_edges = np.geomspace if is_logarithmic else np.linspace
        self.edges: Floats = make_edges(low, high, _NUM_BINS + 1)
        self.is_logarithmic = is_logarithmic
        self.counts = np.zeros(_NUM_BINS, np.int64)

    def add(self, numbers: Floats) -> None:
        """Counts finite numbers."""
        finite = numbers[np.isfinite(numbers)]
        clipped = np.clip(finite, self.edges[0], self.edges[-1])
        self.counts += np.histogram(clipped, self.edges)[0]

    def as_dict(self) -> dict[str, Any]:
        """Returns edges and counts for JSON."""
        return {
            "edges": self.edges.tolist(),
            "counts": self.counts.tolist(),
            "is_logarithmic": self.is_logarithmic,
        }


@dataclass(slots=True)
class NumberSummary:
    """Minimum, mean, maximum and histogram of one number of all rows.

    Args:
        histogram: Histogram whose bins are known.
    """

    histogram: Histogram
    least: float = np.inf
    most: float = -np.inf
    total: float = 0.0
    num_finite: int = 0
    num_non_finite: int = 0

    def add(self, numbers: Floats) -> None:
        """Adds the numbers of some rows."""
        finite = numbers[np.isfinite(numbers)]
        self.num_non_finite += len(numbers) - len(finite)
        self.num_finite += len(finite)
        if len(finite):
            self.least = min(self.least, float(finite.min()))
            self.most = max(self.most, float(finite.max()))
            self.total += float(finite.sum())
        self.histogram.add(finite)

    def as_dict(self) -> dict[str, Any]:
        """Returns the values for JSON; None if no number is finite."""
        count = self.num_finite
        return {
            "min": self.least if count else None,
            "mean": self.total / count if count else None,
            "max": self.most if count else None,
            "non_finite": self.num_non_finite,
            "histogram": self.histogram.as_dict(),
        }


def summarize_numbers(numbers: Mapping[str, Floats]) -> dict[str, Any]:
    """Returns the summary of each number of a sample, by name."""
    found = {}
    for name, values in numbers.items():
        summary = NumberSummary(Histogram(values))
        summary.add(values)
        found[name] = summary.as_dict()
    return found


def has_umap() -> bool:
    """Returns whether umap-learn is installed, without importing it."""
    from importlib.util import find_spec

    return find_spec("umap") is not None


def map_points(embeddings: npt.NDArray[Any], method: MapMethod) -> dict[str, Any]:
    """Returns points in two dimensions that represent embeddings.

    Args:
        embeddings: ``(n, dim)``.
        method: ``pca`` projects them on the two directions of largest variance. ``umap`` preserves
            neighborhoods, and requires umap-learn.

    Returns:
        ``x`` and ``y``, with None for embeddings that are not finite; for PCA also ``explained``, the
        shares of the variance in the two directions.

    Raises:
        InvalidArgumentError: The method is unknown.
        UnsupportedError: umap-learn is not installed.
    """
    if method not in {"pca", "umap"}:
        raise InvalidArgumentError(
            f"map of rows: found the method {method!r}, expected pca or umap; choose one of them"
        )
    wide = embeddings.astype(np.float64)
    is_finite = np.isfinite(wide).all(axis=1)
    points = np.full((len(wide), 2), np.nan)
    told: dict[str, Any] = {}
    if method == "pca":
        points[is_finite], told["explained"] = _project(wide[is_finite])
    else:
        points[is_finite] = _embed(wide[is_finite])
    x, y = (
        [None if np.isnan(each) else float(f"{each:.6g}") for each in points[:, axis]]
        for axis in range(2)
    )
    return {"method": method, "x": x, "y": y, **told}


def _project(wide: Floats) -> tuple[Floats, list[float]]:
    if len(wide) < 2:
        return np.zeros((len(wide), 2)), [0.0, 0.0]
    centered = wide - wide.mean(axis=0)
    # The covariance is small, while a decomposition of all rows would be slow for large dims.
    variances, directions = np.linalg.eigh(centered.T @ centered)
    best = directions[:, ::-1][:, :2]
    # An eigenvector has no sign; make the largest element positive, so that the map is reproducible.
    best = best * np.sign(best[np.abs(best).argmax(axis=0), range(best.shape[1])])
    points = np.zeros((len(wide), 2))
    points[:, : best.shape[1]] = centered @ best
    total = float(variances.sum()) or 1.0
    shares = [float(each) / total for each in variances[::-1][:2]]
    return points, [*shares, 0.0][:2]


def _embed(wide: Floats) -> Floats:
    try:
        from umap import UMAP
    except ImportError:
        raise UnsupportedError(
            "a map with UMAP requires umap-learn, which is not installed; run: pip install umap-learn, "
            "or choose PCA"
        ) from None
    if len(wide) <= _NUM_NEIGHBORS:
        raise InvalidArgumentError(
            f"a map with UMAP needs more than {_NUM_NEIGHBORS} rows, found {len(wide)}; choose PCA"
        )
    made = UMAP(n_components=2, n_neighbors=_NUM_NEIGHBORS, random_state=_SEED, n_jobs=1)
    points: Floats = np.asarray(made.fit_transform(wide), np.float64)
    return points
