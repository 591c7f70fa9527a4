"""Runs sparring's test kit on the kind of data, and tests what is specific to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import hash_strings
from sparring.errors import DataError
from sparring_jsonl import JsonLinesData
from sparring_jsonl.plugin import sparring_register_data
from sparring_testing import DatasetRequest, DatasetTests
from sparring_train import OpenRequest

[KIND] = sparring_register_data()


def line(number: int, **values: Any) -> str:
    known = {
        "user": f"u{number % 7}",
        "item": number % 5,
        "price": number / 4,
        "clicked": number % 2,
    }
    return json.dumps({**known, **values})


def section(folder: Path, *lines: str) -> JsonLinesData:
    path = folder / "clicks.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return JsonLinesData(
        kind="json_lines", path=str(path), label="clicked", ids=("user", "item"),
        numbers=("price",), batch_size=32,
    )  # fmt: skip


class TestJsonLines(DatasetTests):
    @pytest.fixture
    def open_dataset(self, tmp_path: Path) -> Any:
        data = section(tmp_path, *map(line, range(200)))

        def opened(request: DatasetRequest) -> Any:
            return KIND.open(
                data, OpenRequest(request.seed, "binary", request.rank, request.world_size)
            )

        return opened

    @pytest.fixture
    def num_examples(self) -> int:
        return 200


def test_strings_are_hashed_and_numbers_are_ids(tmp_path: Path) -> None:
    data = section(tmp_path, line(3), "", line(4, user=-(2**63), item="x", label=True))
    assert KIND.read is not None
    [batch] = KIND.read(data, data.path)
    assert batch.ids["user"].ids.tolist() == [hash_strings(["u3"])[0], -(2**63)]
    assert batch.ids["item"].ids.tolist() == [3, hash_strings(["x"])[0]]
    assert batch.numbers.tolist() == [[0.75], [1.0]]
    assert batch.labels is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("{", "line 2: cannot parse as JSON"),
        ("[1]", "line 2: found .1., expected an object"),
        (
            line(1, user=None),
            "line 2, key 'user': found None, expected a string or a 64-bit integer",
        ),
        (line(1, item=2**63), "line 2, key 'item': found 9223372036854775808"),
        (line(1, item=True), "line 2, key 'item': found True"),
        (line(1, price=float("nan")), "line 2, key 'price': found nan, expected a finite number"),
        (line(1, price=10**400), "line 2, key 'price': found 1000"),
        (line(1, clicked=2), "line 2, key 'clicked': found 2, expected 0 or 1"),
    ],
)
def test_an_invalid_line_is_named(wrong: str, message: str, tmp_path: Path) -> None:
    data = section(tmp_path, line(0), wrong, line(2))
    with pytest.raises(DataError, match=message):
        KIND.open(data, OpenRequest(1, "binary"))


def test_unusable_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found 1 examples, too few"):
        KIND.open(section(tmp_path, line(0)), OpenRequest(1, "binary"))
    data = section(tmp_path).model_copy(update={"path": str(tmp_path / "none")})
    with pytest.raises(DataError, match="none: cannot be read"):
        KIND.open(data, OpenRequest(1, "binary"))


def test_labels_may_be_booleans(tmp_path: Path) -> None:
    data = section(tmp_path, *(line(n, clicked=bool(n % 3)) for n in range(40)))
    dataset = KIND.open(data, OpenRequest(1, "binary"))
    labels = np.concatenate([each.labels for each in dataset.batches(0) if each.labels is not None])
    assert set(labels.tolist()) == {0.0, 1.0}
