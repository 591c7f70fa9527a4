"""Malicious and damaged snapshots cause errors or correct results, but never a crash."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import sparring_packed
from sparring.errors import SnapshotDamagedError, SnapshotError, SparringError

IDS = np.concatenate([np.arange(-50, 260), [2**63 - 1, -(2**63)]])


@pytest.fixture
def small(training: Any) -> Any:
    """A small full snapshot and a delta with erased ids, so that every byte can be tested."""
    training.train(np.arange(200), quantize={"item": "int8"})
    training.train(np.arange(10), range(20, 40))
    return training


def answers(training: Any, verify: Any) -> tuple[bytes, bytes, int]:
    with sparring_packed.open(training.served_url(), verify=verify) as tables:
        rows = tables.lookup("item", IDS)
        sums = tables.pool("item", IDS, [0, 100, len(IDS)])
        return rows.tobytes(), sums.tobytes(), sum(len(keys) for keys, _ in tables.scan("item", 64))


def seal(folder: Path, change: Any) -> None:
    """Changes a manifest and updates its hash, like an attacker."""
    text = (folder / "manifest.json").read_bytes()
    plain = json.loads(text)
    plain.pop("hash")
    change(plain)
    body = json.dumps(plain).encode()[:-1] + b","
    digest = xxhash.xxh3_128_hexdigest(body).encode()
    (folder / "manifest.json").write_bytes(body + b'\n "hash": "%b"\n}\n' % digest)


def reseal_file(folder: Path, name: str, data: bytes) -> None:
    """Writes a file, and updates its header and manifest accordingly."""
    header = bytearray(data[:128])
    digest = 0xCBF29CE484222325
    for byte in header[:120]:
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    struct.pack_into("<Q", header, 120, digest)
    data = bytes(header) + data[128:]
    (folder / name).write_bytes(data)

    def change(plain: Any) -> None:
        for file in plain["files"]:
            if file["name"] == name:
                file["size_bytes"] = len(data)
                file["hash"] = xxhash.xxh3_128_hexdigest(data)

    seal(folder, change)


@pytest.mark.parametrize("kind", ["manifest", "rows", "erased", "existing", "changed"])
def test_a_changed_byte_is_rejected_P7(small: Any, kind: str) -> None:
    right = answers(small, "all")
    (path,) = Path(small.served_url()).glob(f"{kind}*")
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    places = np.unique(np.append(rng.integers(0, len(whole), 400), np.arange(0, 200)))
    for place in places[places < len(whole)]:
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(SnapshotError):
            answers(small, "all")
    path.write_bytes(whole)
    assert answers(small, "all") == right


@pytest.mark.parametrize("kind", ["rows", "erased"])
def test_changed_bytes_that_are_not_verified_never_crash_P8(small: Any, kind: str) -> None:
    (path,) = Path(small.served_url()).glob(f"{kind}*")
    whole = path.read_bytes()
    rng = np.random.default_rng(2)
    refused = 0
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(int(rng.integers(1, 6))):
            # Mainly buckets, because a reader follows their positions.
            most = 128 + 256 if rng.random() < 0.7 else len(whole)
            changed[int(rng.integers(0, min(most, len(whole))))] = int(rng.integers(256))
        path.write_bytes(changed)
        try:
            answers(small, "open")
        except SparringError:
            refused += 1
    assert refused > 0
    path.write_bytes(whole)


def test_a_header_with_wrong_numbers_is_rejected_P8(small: Any) -> None:
    folder = Path(small.served_url())
    (path,) = folder.glob("rows*")
    whole = path.read_bytes()
    for offset, form in (
        (8, "<I"), (12, "<I"), (16, "<I"), (20, "<I"), (24, "<I"), (28, "<I"), (32, "<Q"),
        (40, "<Q"), (56, "<I"), (60, "<H"), (62, "<H"), (64, "<Q"), (72, "<Q"),
    ):  # fmt: skip
        for value in (0, 1, 2**16 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1):
            fitting = value % 2 ** (8 * struct.calcsize(form))
            changed = bytearray(whole)
            if struct.unpack_from(form, whole, offset)[0] == fitting:
                continue
            struct.pack_into(form, changed, offset, fitting)
            reseal_file(folder, path.name, bytes(changed))
            # A larger bucket bound and another salt are consistent: keys are not found.
            if offset == 56 and 29 < fitting <= 2**16 - 1:
                answers(small, "all")
                continue
            with pytest.raises(SnapshotDamagedError):
                answers(small, "all")


def test_buckets_out_of_range_are_rejected_P8(small: Any) -> None:
    folder = Path(small.served_url())
    (path,) = folder.glob("rows*")
    whole = path.read_bytes()
    for start, count in ((2**32 - 1, 5), (2**32 - 1, 1), (0, 2**16 - 1), (10, 1), (5, 6)):
        changed = bytearray(whole)
        struct.pack_into("<IH", changed, 128, start, count)
        reseal_file(folder, path.name, bytes(changed))
        with pytest.raises(SnapshotDamagedError, match="bucket 0 is out of range"):
            answers(small, "all")


def test_files_that_are_truncated_missing_or_links_are_rejected_P8(small: Any) -> None:
    (path,) = Path(small.served_url()).glob("rows*")
    whole = path.read_bytes()
    for length in (0, 1, 127, 128, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(SnapshotDamagedError, match="bytes, expected"):
            answers(small, "open")
    path.unlink()
    with pytest.raises(SnapshotError, match="cannot be read"):
        answers(small, "open")
    other = path.with_name("elsewhere")
    other.write_bytes(whole)
    path.symlink_to(other)
    with pytest.raises(SnapshotError, match="cannot be read"):
        answers(small, "open")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SnapshotDamagedError, match="regular file"):
        answers(small, "open")


def test_inconsistent_manifests_are_rejected_P8(small: Any) -> None:
    folder = Path(small.served_url())
    text = (folder / "manifest.json").read_bytes()

    def files(name: str, value: object) -> Any:
        return lambda plain: plain["files"][0].__setitem__(name, value)

    def tables(name: str, value: object) -> Any:
        return lambda plain: plain["tables"][0].__setitem__(name, value)

    for change in (
        files("name", "../rows"), files("name", ".rows"), files("name", ""), files("name", 3),
        files("table", "film"), files("partitions", [0, 4097]), files("partitions", [3, 3]),
        files("partitions", [0]), files("partitions", [5, 6]), files("num_keys", -1),
        files("num_keys", 2**40), files("num_keys", 1.5), files("hash", "0"),
        files("size_bytes", 2**63), tables("dim", 0), tables("dim", 2**30), tables("dtype", "int2"),
        tables("trained_dtype", "int4"), tables("seed", 2**70), tables("name", "a/b"),
        tables("initializer", {"kind": "magic", "first": 0, "second": 0}),
        tables("initializer", None), lambda plain: plain.pop("tables"),
        lambda plain: plain["tables"].clear(), lambda plain: plain["tables"].append(plain["tables"][0]),
        lambda plain: plain["files"].append(plain["files"][0]),
        lambda plain: plain.update(format="sparring snapshot"), lambda plain: plain.update(step=-1),
        lambda plain: plain.update(base={"name": "..", "hash": "0" * 32}),
        lambda plain: plain.update(files={}),
    ):  # fmt: skip
        seal(folder, change)
        with pytest.raises(SnapshotError):
            answers(small, "open")
        (folder / "manifest.json").write_bytes(text)
    seal(folder, lambda plain: plain.update(version=4))
    with pytest.raises(
        SnapshotDamagedError, match=r"version 4, .*this library reads versions up to 3"
    ):
        answers(small, "open")
    (folder / "manifest.json").write_bytes(text)
    assert answers(small, "all")[2] == 180


@pytest.mark.parametrize(
    "json_text",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'"' + b"a" * 300,
        b"{" * 300,
        b"1e999999" * 50,
        b"\\" * 300,
    ],
    ids=["lists", "objects", "text", "braces", "number", "escapes"],
)
def test_text_that_is_not_json_is_rejected_P8(small: Any, json_text: bytes) -> None:
    path = Path(small.served_url()) / "manifest.json"
    body = json_text + b" " * 300
    digest = xxhash.xxh3_128_hexdigest(body).encode()
    path.write_bytes(body + b'\n "hash": "%b"\n}\n' % digest)
    with pytest.raises(SnapshotDamagedError):
        answers(small, "open")


def test_after_damage_in_a_delta_the_old_version_is_served_P5(small: Any) -> None:
    with sparring_packed.open(small.served_url(1)) as tables:
        before = tables.lookup("item", IDS).tobytes()
        (path,) = Path(small.served_url()).glob("rows*")
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + b"x")
        with pytest.raises(SnapshotDamagedError):
            tables.refresh(small.served)
        assert tables.version.step == 1
        assert tables.lookup("item", IDS).tobytes() == before
        path.write_bytes(whole)
        assert tables.refresh(small.served)


def test_a_damaged_filter_is_rejected(small: Any) -> None:
    (path,) = Path(small.served_url()).glob("changed*")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with sparring_packed.open(small.served, verify="open") as tables:
        assert tables.existing_filter("item") is not None
        with pytest.raises(SnapshotDamagedError, match="size or hash differs from the manifest"):
            tables.changed_filter("item")


def test_hashes_equal_xxh3(small: Any) -> None:
    """Files of all lengths with different last XXH3 blocks pass the library's own check."""
    folder = Path(small.served_url(1))
    (path,) = folder.glob("existing*")
    assert xxhash.xxh3_128_hexdigest(path.read_bytes()) in (folder / "manifest.json").read_text()
