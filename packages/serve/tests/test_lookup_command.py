"""``sparring lookup`` finds the rows of strings that look like numbers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparring import hash_strings
from sparring_cli.application import main
from sparring_serve.cli import lookup

STRINGS = hash_strings(["0007", "12", "shoe"]).tolist()
STORED = [*STRINGS, 7, -3]


class _Client:
    """Answers with the key as the row."""

    def __init__(self, *given: Any) -> None:
        pass

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def pull(self, ids: dict[str, list[int]], **options: Any) -> Any:
        keys = ids["item"]
        return SimpleNamespace(
            rows={"item": np.array(keys, np.float64)[:, None]},
            found={"item": np.array([each in STORED for each in keys])},
            version=None,
            age_seconds=0.0,
        )


@pytest.mark.parametrize(
    ("text", "key", "is_found"),
    [
        ("7", 7, True),
        ("-3", -3, True),
        ("0007", STRINGS[0], True),  # not the row of the integer 7
        ("12", STRINGS[1], True),
        ("shoe", STRINGS[2], True),
        ("13", 13, False),
    ],
)
def test_a_number_without_a_row_is_read_as_a_string(
    text: str,
    key: int,
    is_found: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(lookup, "LookupClient", _Client)
    assert main(["lookup", "localhost:1", "item", text, "--json"]) == (0 if is_found else 3)
    line = json.loads(capsys.readouterr().out)
    assert (line["ids"], line["found"]) == ([key], [is_found])
    assert line["rows"] == [[float(key)]]
