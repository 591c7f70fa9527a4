"""`sparring_spark.hash_strings` on a local Spark."""

from __future__ import annotations

from typing import Any

import pytest

from sparring import hash_strings as expected_ids
from sparring.errors import InvalidArgumentError
from sparring_spark import hash_strings


def test_strings_become_ids_and_other_columns_stay(spark: Any) -> None:
    rows = [("a", ["x", None], 1.5), (None, [], 2.5), ("ß", None, 3.5)]
    frame = spark.createDataFrame(rows, "item string, seen array<string>, price double")
    found = hash_strings(frame, ["item", "seen"])
    assert hash_strings(frame, "item").schema["item"].dataType.simpleString() == "bigint"
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
