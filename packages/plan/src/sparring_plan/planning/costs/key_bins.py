"""Key distributions of planned tables, from Zipf's law or from sketches of the user's data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparring_plan.planning.costs.sketch import Sketch, read_sketch
from sparring_plan.planning.costs.unique_keys import KeyBins, make_zipf_bins
from sparring_plan.planning.inputs import SketchFile, TableSpec

__all__ = ["key_bins"]


def key_bins(specs: Sequence[TableSpec]) -> KeyBins:
    """Returns the key distributions of tables, in their order.

    Raises:
        ConfigError: The file of a sketch cannot be read.
    """
    rows = np.asarray([spec.expected_rows for spec in specs], np.float64)
    skew = [spec.skew if isinstance(spec.skew, float | int) else 0.0 for spec in specs]
    zipf = make_zipf_bins(rows, np.asarray(skew, np.float64))
    sketched = [index for index, spec in enumerate(specs) if not isinstance(spec.skew, float | int)]
    if not sketched:
        return zipf
    parts = []
    at = 0
    for index in sketched:
        found = specs[index].skew
        sketch = read_sketch(found.sketch) if isinstance(found, SketchFile) else found
        assert isinstance(sketch, Sketch)
        if index > at:
            parts.append(zipf[at:index])
        parts.append(sketch.key_bins(specs[index].expected_rows))
        at = index + 1
    return KeyBins.joined([*parts, *([zipf[at:]] if at < len(specs) else [])])
