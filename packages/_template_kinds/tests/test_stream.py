"""The stream passes sparring's kit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import DataError
from sparring_jsonl.plugin import sparring_register_streams
from sparring_jsonl.stream import LinesSource
from sparring_testing import StreamSourceTests


class WritableLines:
    partitions = ("lines",)

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def open(self) -> Any:
        # As `sparring train` opens it.
        [stream] = sparring_register_streams()
        return stream.open(f"jsonl://{self._path}", stream.options())

    def append(self, partition: str, numbers: Sequence[int]) -> None:
        with self._path.open("a") as file:
            file.writelines(f"{each}\n" for each in numbers)

    def numbers(self, message: Any) -> list[int]:
        return [int(message.value)]

    def remove(self, partition: str, count: int) -> bool:
        return False


class TestLines(StreamSourceTests):
    @pytest.fixture
    def stream(self, tmp_path: Path) -> WritableLines:
        return WritableLines(tmp_path / "clicks.jsonl")


def test_an_incomplete_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "clicks.jsonl"
    path.write_bytes(b"1\n2")
    source = LinesSource(f"jsonl://{path}")
    assert source.end_offsets() == {"lines": 2}
    assert [each.value for each in source.read("lines", 0, 9, time.monotonic()).messages] == [
        b"1\n"
    ]
    path.write_bytes(b"1\n23\n")
    assert [each.value for each in source.read("lines", 2, 9, time.monotonic()).messages] == [
        b"23\n"
    ]
    source.close()


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere failed: .*; create the file"):
        LinesSource(f"jsonl://{tmp_path}/nowhere")
