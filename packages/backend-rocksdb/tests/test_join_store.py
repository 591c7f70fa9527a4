"""The store of open impressions returns what the store in memory returns."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

pytest.importorskip("sparring_train", reason="pip install sparring-train")
pytest.importorskip("pyarrow", reason="the store in memory writes Arrow files")

from sparring.errors import StorageIOError
from sparring_rocksdb.join_store import RocksdbJoinOptions, RocksdbJoinStore
from sparring_train.data.join.memory_store import MemoryJoinStore

TIMES = [-math.inf, -2.5, -0.0, 0.0, 1e-300, 3.0, 1.7e9, math.inf]


def open_store(folder: Path) -> RocksdbJoinStore:
    return RocksdbJoinStore(str(folder), RocksdbJoinOptions(write_buffer_bytes=1 << 16))


def test_it_equals_the_store_in_memory(tmp_path: Path) -> None:
    generator = random.Random(5)
    stores = open_store(tmp_path / "0"), MemoryJoinStore(str(tmp_path / "0"))
    times: dict[bytes, float] = {}
    keys = [bytes([number]) * (number % 3 + 1) for number in range(40)]
    for turn in range(300):
        chosen = generator.sample(keys, 6)
        removed = [(key, times.pop(key)) for key in chosen if key in times]
        added = [
            (key, generator.choice(TIMES), generator.randbytes(generator.randrange(900)))
            for key in chosen[:4]
        ]
        times.update({key: time for key, time, _ in added})
        after, until = generator.choice(TIMES[:4]), generator.choice(TIMES)
        most = generator.randrange(1, 50)
        found = []
        for store in stores:
            store.write(removed, added)
            found.append((store.get(keys), store.scan(after, until, most)))
        assert found[0] == found[1], f"turn {turn}"
        if turn % 100 == 50:
            copies = [tmp_path / f"{turn}-{name}" for name in range(2)]
            for store, copy in zip(stores, copies, strict=True):
                store.checkpoint(str(copy))
                store.close()
            stores = open_store(copies[0]), MemoryJoinStore(str(copies[1]))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageIOError, match=r"in .*file/rows: the folder cannot be created"):
        open_store(tmp_path / "file" / "rows")
