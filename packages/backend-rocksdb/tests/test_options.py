"""Options of ``rocksdb`` tables: which are rejected, and the effects of the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparring
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_rocksdb.backend import RocksdbStorage, _reject_foreign_folder
from sparring_rocksdb.options import RocksdbOptions

TABLE = TableConfig("table", 16)
PAGE = Path(__file__).parents[3] / "docs/reference/rocksdb.md"


def test_plugin_is_found_by_its_name(tmp_path: Path) -> None:
    with sparring.open_storage("rocksdb", TABLE, path=str(tmp_path / "rows")) as storage:
        assert isinstance(storage, RocksdbStorage)
        assert storage.capacity is None
        assert storage.distribution.startswith("sparring-rocksdb ")
        offered = storage.capabilities
        assert (offered.persistent, offered.native, offered.concurrent_reads) == (True,) * 3
        assert (offered.bounded, offered.evict, offered.touch) == (False,) * 3
        with pytest.raises(UnsupportedError):
            storage.set_option("colour", "red")


def test_importing_the_plugin_loads_no_native_library() -> None:
    program = (
        "import sys, sparring_rocksdb.plugin; print('sparring_rocksdb._native' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize(
    "options",
    [
        {"block_cache_bytes": -1},
        {"block_cache_bytes": "10 blocks"},
        {"write_buffer_bytes": 1},
        {"bloom_bits_per_key": -1},
        {"compression": "gzip"},
        {"rate_limit_bytes_per_second": 0},
        {"max_open_files": 1},
        {"background_threads": 0},
        {"recovery": "some"},
        {"colour": "red"},
    ],
    ids=str,
)
def test_wrong_options_are_rejected_by_name_and_nothing_is_created(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        sparring.open_storage("rocksdb", TABLE, path=tmp_path / "rows", **options)
    assert not (tmp_path / "rows").exists()


def test_a_table_without_a_path_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="option 'path' is missing"):
        sparring.open_storage("rocksdb", TABLE)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"compression": "lz4"},
        {"compression": "snappy"},
        {"direct_io": True, "block_cache_bytes": 0},
        {"bloom_bits_per_key": 0},
        {"rate_limit_bytes_per_second": 1 << 30, "max_open_files": 16},
        {"sync_writes": True, "block_bytes": 65536, "known_keys_bytes": 0},
    ],
    ids=str,
)
def test_rows_are_the_same_with_every_option(tmp_path: Path, options: dict[str, Any]) -> None:
    keys = np.random.default_rng(1).permutation(30_000) - 15_000
    rows = np.repeat(keys[:, None].astype(np.float32), 16, axis=1)
    given = RocksdbOptions(path=tmp_path, write_buffer_bytes=1 << 18, **options)
    for _ in range(2):
        with RocksdbStorage(TABLE, given) as storage:
            for part in np.array_split(np.arange(30_000), 6):
                storage.upsert(keys[part], rows[part])
            storage.flush()
            assert storage.size == 30_000
            np.testing.assert_array_equal(storage.find(keys).rows, rows)
            assert not storage.find(keys + 30_000).found.any()
            assert storage.erase(keys[:1000]) == 1000


def test_compression_makes_files_smaller(tmp_path: Path) -> None:
    sizes = {}
    for compression in ("none", "zstd"):
        folder = tmp_path / compression
        options = RocksdbOptions(path=folder, compression=compression, write_buffer_bytes=1 << 18)
        with RocksdbStorage(TABLE, options) as storage:
            for begin in range(0, 100_000, 5_000):
                storage.upsert(np.arange(begin, begin + 5_000), np.ones((5_000, 16), np.float32))
            storage.checkpoint(folder / "written out")
        sizes[compression] = sum(
            each.stat().st_size for each in (folder / "written out").glob("*.sst")
        )
    assert sizes["zstd"] < sizes["none"] / 3


def test_the_reference_page_has_every_option_with_its_default() -> None:
    page = PAGE.read_text()
    for name, field in RocksdbOptions.model_fields.items():
        default = "required" if field.is_required() else f"`{field.default}`"
        assert f"| `{name}` | {default} |" in page


def test_sizes_may_have_units() -> None:
    options = RocksdbOptions(path="rows", block_cache_bytes="64 MiB", write_buffer_bytes="1MB")  # type: ignore[arg-type]
    assert (options.block_cache_bytes, options.write_buffer_bytes) == (64 << 20, 1_000_000)
    with pytest.raises(InvalidArgumentError, match="have a unit such as 512 MiB"):
        sparring.open_storage("rocksdb", TABLE, path="rows", block_cache_bytes="much")


@pytest.mark.parametrize("path", ["{nope}/rows", "rows/{Rank}", "rows/{}"])
def test_an_unknown_placeholder_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"no placeholders other than \{rank\}"):
        sparring.open_storage("rocksdb", TABLE, path=path)
    assert not list(tmp_path.iterdir())
    assert RocksdbOptions(path=Path("{table}/{rank}-of-{world_size}"))


def test_a_folder_with_other_contents_is_rejected_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "step-000000000004").mkdir()
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InvalidArgumentError, match=r"'notes' and 1 more.*another folder"):
        sparring.open_storage("rocksdb", TABLE, path=tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes", "step-000000000004"]


def test_a_folder_whose_creation_was_interrupted_is_accepted(tmp_path: Path) -> None:
    made = tmp_path / "made"
    sparring.open_storage("rocksdb", TABLE, path=made).close()
    sparring.open_storage("rocksdb", TABLE, path=made).close()
    (made / "CURRENT").unlink()
    for each in made.iterdir():  # all folders of a database are known
        (tmp_path / "cut" / each.name).parent.mkdir(exist_ok=True)
        (tmp_path / "cut" / each.name).touch()
    _reject_foreign_folder(tmp_path / "cut")
    (tmp_path / "mounted" / "lost+found").mkdir(parents=True)
    sparring.open_storage("rocksdb", TABLE, path=tmp_path / "mounted").close()
