"""`sparring_spark.hash_strings` on a local Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from sparring import hash_strings as expected_ids
from sparring.errors import InvalidArgumentError

pyspark = pytest.importorskip("pyspark", reason="runs Spark; nox -s engines installs it")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java: apt install openjdk-17-jre-headless", allow_module_level=True)

from pyspark.sql import SparkSession  # noqa: E402 - pyspark may be missing

from sparring_spark import hash_strings  # noqa: E402 - imports pyspark in its functions


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    yield session
    session.stop()


def test_strings_become_ids_and_other_columns_stay(spark: Any) -> None:
    rows = [("a", ["x", None], 1.5), (None, [], 2.5), ("ß", None, 3.5)]
    frame = spark.createDataFrame(rows, "item string, seen array<string>, price double")
    found = hash_strings(frame, ["item", "seen"])
    assert found.schema.simpleString() == "struct<item:bigint,seen:array<bigint>,price:double>"
    a, x, sharp = expected_ids(["a", "x", "ß"]).tolist()
    assert sorted(map(tuple, found.collect()), key=lambda row: row[2]) == [
        (a, [x, None], 1.5),
        (None, [], 2.5),
        (sharp, None, 3.5),
    ]


def test_columns_without_strings_are_rejected(spark: Any) -> None:
    frame = spark.createDataFrame([("a", 1)], "item string, price int")
    with pytest.raises(InvalidArgumentError, match="no column 'itm', expected one of item, price"):
        hash_strings(frame, ["itm"])
    with pytest.raises(InvalidArgumentError, match="'price' has the type int"):
        hash_strings(frame, ["price"])
