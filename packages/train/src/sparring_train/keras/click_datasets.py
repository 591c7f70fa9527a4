"""Click logs in Criteo format as pipelines of `tf.data`."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from typing import Any, Literal

import tensorflow as tf

from sparring_train.data.criteo import criteo_files, read_clicks
from sparring_train.data.criteo_format import NUM_FEATURES, NUM_INTEGERS

__all__ = ["click_dataset"]


def click_dataset(
    path: str | PathLike[str],
    batch_size: int,
    *,
    part: Literal["all", "train", "test"] = "all",
    test_fraction: float = 0.1,
    seed: int = 0,
) -> Any:
    """Batches of a log as text or Parquet, for `model.fit` or a loop of your own.

    An element is ``((integers, ids), labels)``: float32 ``(b, 13)``, scaled by ``log1p``; int64
    ``(b, 26)``, raw; float32 ``(b,)``. Files are read while the dataset is iterated, from the
    beginning each time, and a few megabytes are held. Methods of `tf.data.Dataset` do the rest:
    ``.shuffle(…)`` of batches, ``.map(…)``, ``.take(…)``, ``.prefetch(…)``.

    Args:
        path: a file, or a folder of them: see `sparring_train.data.criteo.criteo_files`.
        batch_size: rows of each batch; the last one may be smaller.
        part: ``train`` or ``test`` keeps the rows of that part, ``all`` every row.
        test_fraction: the share of rows in the test part, at least 0 and below 1.
        seed: of the split; any 64-bit number.

    Returns:
        A `tf.data.Dataset`. Where a row is malformed, or pyarrow is missing, iterating it raises
        an error of TensorFlow whose text has that of `sparring.errors`.

    Raises:
        DataError: there is no such file, or the folder has none.
        InvalidArgumentError: an argument is out of range.
    """
    criteo_files(path)

    def batches() -> Iterator[Any]:
        rows = read_clicks(path, batch_size, part=part, test_fraction=test_fraction, seed=seed)
        return (((each.dense, each.ids), each.labels) for each in rows)

    # Arguments are checked here, not in the middle of `model.fit`; no file is opened.
    batches()
    signature = (
        (
            tf.TensorSpec([None, NUM_INTEGERS], tf.float32),
            tf.TensorSpec([None, NUM_FEATURES], tf.int64),
        ),
        tf.TensorSpec([None], tf.float32),
    )
    return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(1)
