"""Recommendations for all users, whose parts are computed by tasks of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow

from sparring import open_snapshot
from sparring_train import (
    RecommendationOptions,
    compute_parts,
    count_parts,
    open_recommendations,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["recommend"]


def recommend(
    spark: SparkSession,
    snapshot: str,
    output: str,
    options: RecommendationOptions | None = None,
    *,
    overrides: Sequence[str] = (),
    num_tasks: int | None = None,
) -> DataFrame:
    """Computes the best items of all users, and returns them as a data frame.

    The tasks of `DataFrame.mapInArrow` write the parts of ``sparring recommend --all-users``: parts that
    exist are kept, and the bytes do not depend on the number of tasks. Executors need the packages of the
    training, and access to the snapshot, the users and the output.

    Args:
        spark: The session.
        snapshot: URL of a snapshot of a run.
        output: Folder or URL that all executors can write.
        options: Users, items, and search; None: the best 10 items of all users of the run.
        overrides: ``dotted.key=value`` for the configuration of the run.
        num_tasks: Number of tasks, each of which opens the model; None: the default parallelism.

    Returns:
        One row per user, with the lists of its best items and of their scores.

    Raises:
        SparringError: As in `open_recommendations`.

    Examples:
        Computes the best 100 items::

            best = sparring_spark.recommend(spark, url, "s3a://bucket/best", RecommendationOptions(k=100))
    """
    # Executors have other current folders.
    options = (options or RecommendationOptions()).with_absolute_paths()
    snapshot, output = (
        each if "://" in each else str(Path(each).absolute()) for each in (snapshot, output)
    )
    overrides = tuple(overrides)
    # The driver stores the vectors of the items, which all tasks map.
    with open_recommendations(
        open_snapshot(snapshot), output, options, overrides=overrides
    ) as opened:
        opened.output.begin(opened.plan)
        num_parts = count_parts(opened)

    def compute(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        parts = [part for batch in batches for part in batch.column(0).to_pylist()]
        if not parts:
            return
        with open_recommendations(
            open_snapshot(snapshot), output, options, overrides=overrides
        ) as job:
            result = compute_parts(job, job.output, parts)
        yield pyarrow.RecordBatch.from_pydict({"computed": [result.num_computed]})

    tasks = num_tasks or spark.sparkContext.defaultParallelism
    numbers = spark.range(0, num_parts, 1, min(tasks, num_parts))
    numbers.mapInArrow(compute, "computed long").collect()
    # Spark would look for a path in its default file system, which may be HDFS.
    url = output.rstrip("/") if "://" in output else Path(output).as_uri()
    return spark.read.parquet(f"{url}/part-*.parquet")
