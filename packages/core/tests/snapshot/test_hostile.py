"""Hostile snapshots raise a typed error, need little memory, and change nothing outside."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from sparring.errors import SnapshotError
from sparring.snapshot.format.data_file import Tensor, encode_header
from sparring.snapshot.format.manifest import hash_blocks
from sparring.snapshot.reader import Snapshot, open_snapshot
from sparring_cli.snapshots.verify import verify_snapshot

from .snapshot_samples import make_chunk, rows_by_key, save

Plain = dict[str, Any]


class Hostile:
    """An intact snapshot that a test modifies consistently, like an attacker."""

    def __init__(self, snapshot: Snapshot, outside: Path) -> None:
        self.folder = Path(snapshot.url)
        self.outside = outside
        self.plain: Plain = json.loads((self.folder / "manifest.json").read_text())
        self.rows: Plain = next(each for each in self.plain["files"] if each["kind"] == "rows")
        self.state: Plain = next(each for each in self.plain["files"] if each["kind"] == "state")

    def write_text(self, body: bytes) -> None:
        """Writes a manifest of any text, with the hash that it must have."""
        digest = xxhash.xxh3_128_hexdigest(body).encode()
        (self.folder / "manifest.json").write_bytes(body + b'\n "hash": "%b"\n}\n' % digest)

    def write(self) -> None:
        self.plain.pop("hash", None)
        self.write_text(json.dumps(self.plain)[:-1].encode() + b",")

    def replace_data(self, data: bytes, entry: Plain | None = None) -> None:
        """Replaces the bytes of a file, and updates the manifest accordingly."""
        entry = self.rows if entry is None else entry
        (self.folder / entry["name"]).write_bytes(data)

        def read_into(offset: int, buffer: memoryview) -> None:
            buffer[:] = data[offset : offset + len(buffer)]

        hashes = hash_blocks(read_into, len(data))
        entry |= {"size_bytes": len(data), "hash": hashes.whole, "blocks": hashes.blocks}
        self.write()

    def replace_header(self, header: bytes, entry: Plain | None = None, length: int = -1) -> None:
        size = len(header) if length < 0 else length
        self.replace_data(size.to_bytes(8, "little") + header + bytes(100), entry)

    def replace_tensors(
        self, tensors: list[Tensor], num_keys: int = 2, partitions: str | None = None
    ) -> None:
        metadata = {} if partitions is None else {"partitions": partitions}
        data = encode_header(tensors, metadata)
        data += bytes(max((each.end for each in tensors), default=0))
        self.rows["num_keys"] = num_keys
        self.replace_data(data)

    def swap_for(self, make: Callable[[Path], object], name: str = "") -> None:
        path = self.folder / (name or self.rows["name"])
        path.unlink()
        make(path)


def rows_tensors(count: int = 2, width: int = 5) -> list[Tensor]:
    return [
        Tensor("keys.0", "I64", (count,), 0),
        Tensor("scores.0", "U64", (count,), 8 * count),
        Tensor("rows.0", "F32", (count, width), 16 * count),
    ]


def named(name: str) -> Callable[[Hostile], None]:
    def attack(hostile: Hostile) -> None:
        hostile.rows["name"] = name.replace("OUTSIDE", str(hostile.outside))
        hostile.write()

    return attack


def changed(where: str, **values: Any) -> Callable[[Hostile], None]:
    def attack(hostile: Hostile) -> None:
        target = hostile.plain if where == "manifest" else getattr(hostile, where, None)
        if target is None:
            target = hostile.plain["tables"][0]
        target |= values
        hostile.write()

    return attack


def header(text: str | bytes, **options: Any) -> Callable[[Hostile], None]:
    encoded = text.encode() if isinstance(text, str) else text
    return lambda hostile: hostile.replace_header(encoded, **options)


def tensors(*made: Tensor, num_keys: int = 2) -> Callable[[Hostile], None]:
    return lambda hostile: hostile.replace_tensors(list(made), num_keys)


def segment_partitions(text: str) -> Callable[[Hostile], None]:
    """Of a file with one segment, with key 0, which is in partition 0."""
    return lambda hostile: hostile.replace_tensors(rows_tensors(1), 1, text)


def text(body: bytes) -> Callable[[Hostile], None]:
    return lambda hostile: hostile.write_text(body)


def swapped(make: Callable[[Path, Path], object], name: str = "") -> Callable[[Hostile], None]:
    return lambda hostile: hostile.swap_for(lambda path: make(path, hostile.outside), name)


def twice(what: str) -> Callable[[Hostile], None]:
    def attack(hostile: Hostile) -> None:
        hostile.plain[what].append(dict(hostile.plain[what][0]))
        hostile.write()

    return attack


def same_rows_twice(hostile: Hostile) -> None:
    """Another file with the same keys."""
    copied = hostile.rows | {"name": "more.safetensors"}
    (hostile.folder / copied["name"]).write_bytes(
        (hostile.folder / hostile.rows["name"]).read_bytes()
    )
    hostile.plain["files"].append(copied)
    hostile.write()


def pickled(hostile: Hostile) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return (os.system, (f"touch {hostile.outside}/pickled",))

    hostile.replace_data(pickle.dumps(Attack()))


def state_values(values: str) -> Callable[[Hostile], None]:
    def attack(hostile: Hostile) -> None:
        hostile.replace_data(encode_header([], {"values": values}), hostile.state)

    return attack


def huge_sparse_file(path: Path, _outside: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


TENSOR = '{"dtype":"U8","shape":[100],"data_offsets":[0,100]}'

ATTACKS: dict[str, Callable[[Hostile], None]] = {
    "a file in the folder above": named("../outside/secret"),
    "an absolute path": named("OUTSIDE/secret"),
    "a path of two components": named("a/b"),
    "the folder itself": named("."),
    "the folder above": named(".."),
    "an empty name": named(""),
    "a name with a zero byte": named("a\0b"),
    "a name with a line break": named("a\n"),
    "a name of 300 letters": named("a" * 300),
    "a base that is a path": changed("manifest", base={"name": "../outside", "hash": "0" * 32}),
    "a base that is the snapshot itself": changed(
        "manifest", base={"name": "step-000000001", "hash": "0" * 32}
    ),
    "a table whose name is a path": changed("tables", name="../item"),
    "a link to a file outside": swapped(lambda path, outside: path.symlink_to(outside / "secret")),
    "a link to itself": swapped(lambda path, _: path.symlink_to(path)),
    "a FIFO": swapped(lambda path, _: os.mkfifo(path)),
    "a folder in place of a file": swapped(lambda path, _: path.mkdir()),
    "a manifest that is a link": swapped(
        lambda path, outside: path.symlink_to(outside / "secret"), "manifest.json"
    ),
    "a manifest that is a FIFO": swapped(lambda path, _: os.mkfifo(path), "manifest.json"),
    "a manifest that is a folder": swapped(lambda path, _: path.mkdir(), "manifest.json"),
    "a manifest of a terabyte": swapped(huge_sparse_file, "manifest.json"),
    "a file of a terabyte": swapped(huge_sparse_file),
    "a negative size": changed("rows", size_bytes=-1, blocks=""),
    "a huge size": changed("rows", size_bytes=2**61),
    "a size beyond 64 bits": changed("rows", size_bytes=2**70),
    "a size with a fraction": changed("rows", size_bytes=1.5),
    "a number of 5,000 digits": text(b'{"version": 1, "step": ' + b"9" * 5000 + b","),
    "keys that are not there": changed("rows", num_keys=2**61),
    "fewer keys than there are": changed("rows", num_keys=1),
    "partitions beyond the last": changed("rows", partitions=[0, 5000]),
    "partitions that hide keys": changed("rows", partitions=[0, 1]),
    "a huge dim": changed("tables", dim=2**40),
    "a negative dim": changed("tables", dim=-4),
    "a dim of another row": changed("tables", dim=3),
    "an object dtype": changed("tables", dtype="object"),
    "a rank of another world": changed("rows", rank=7),
    "a world of no ranks": changed("manifest", world_size=0),
    "a later version": changed("manifest", version=2),
    "an unknown field": changed("manifest", run="rm"),
    "a table listed twice": twice("tables"),
    "a file listed twice": twice("files"),
    "a field given twice": text(b'{"version": 1, "version": 1,'),
    "a manifest nested deeply": text(b'{"version": 1, "extra": ' + b"[" * 200_000 + b","),
    "a description nested deeply": text(
        b'{"version": 1, "tables": ' + b'[{"extra":' * 5_000 + b"1" + b"}]" * 5_000 + b","
    ),
    "a manifest that is a list": lambda hostile: (
        (hostile.folder / "manifest.json").write_text("[]") and None
    ),
    "a manifest that is no text": text(b"{\xff\xfe"),
    "a pickle in place of rows": pickled,
    "a header of 2**63 bytes": header("{}", length=2**63),
    "a header longer than the file": header("{}", length=1 << 16),
    "a header that is no JSON": header("{"),
    "a header that is a list": header("[]"),
    "a header nested deeply": header('{"a":' * 100_000),
    "a tensor named twice": header(f'{{"a":{TENSOR},"a":{TENSOR}}}'),
    "a tensor of a negative shape": header(TENSOR.join(('{"a":', "}")).replace("[100]", "[-100]")),
    "a tensor of a huge shape": header(
        TENSOR.join(('{"a":', "}")).replace("[100]", "[4611686018427387903,4611686018427387903]")
    ),
    "a tensor beyond the file": header(TENSOR.join(('{"a":', "}")).replace("100", "1000")),
    "a tensor of objects": header(TENSOR.join(('{"a":', "}")).replace("U8", "O")),
    "a tensor of true elements": header(TENSOR.join(('{"a":', "}")).replace("[100]", "[true]")),
    "tensors that overlap": header(f'{{"a":{TENSOR},"b":{TENSOR}}}'),
    "a gap between tensors": header('{"a":' + TENSOR.replace("[0,100]", "[50,150]") + "}"),
    "metadata that are no texts": header(f'{{"__metadata__":{{"a":[]}},"a":{TENSOR}}}'),
    "rows of another width": tensors(*rows_tensors(width=7)),
    "rows without scores": tensors(rows_tensors()[0], Tensor("rows.0", "F32", (2, 5), 16)),
    "rows of two kinds of keys": tensors(*rows_tensors(), Tensor("keys.7", "I64", (0,), 72)),
    "keys of two dimensions": tensors(
        Tensor("keys.0", "I64", (1, 2), 0), *rows_tensors()[1:], num_keys=2
    ),
    "keys that are floats": tensors(Tensor("keys.0", "F64", (2,), 0), *rows_tensors()[1:]),
    "keys without a dimension": tensors(Tensor("keys.0", "I64", (), 0), num_keys=0),
    "a key given twice in a file": tensors(*rows_tensors()),
    "a segment of 68 megabytes": tensors(*rows_tensors(1_900_000), num_keys=1_900_000),
    "a key given twice in two files": same_rows_twice,
    "partitions of a segment that are no numbers": segment_partitions("0-x"),
    "partitions of a segment in other digits": segment_partitions("0-\u0664"),
    "partitions of a segment beyond the last": segment_partitions("0-4097"),
    "partitions of a segment that begin at their end": segment_partitions("7-7"),
    "partitions of a segment that hide its keys": segment_partitions("1-4096"),
    "partitions of more segments than there are": segment_partitions("0-4096 0-4096"),
    "partitions of no segment": segment_partitions(""),
    "state that is no JSON": state_values("{"),
    "state nested deeply": state_values("[" * 100_000),
    "state without values": lambda hostile: hostile.replace_data(encode_header([]), hostile.state),
}


def read_all(url: str) -> None:
    snapshot = open_snapshot(url)
    rows_by_key(snapshot)
    snapshot.state("optimizer")


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_snapshot_is_rejected(attack: str, tmp_path: Path) -> None:
    """S12, S13, S14"""
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = outside / "secret"
    secret.write_text("as it was")
    before = secret.stat()
    snapshot = save(tmp_path / "root", 1, make_chunk(range(10)))
    ATTACKS[attack](Hostile(snapshot, outside))
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotError) as caught:
            read_all(snapshot.url)
        allocated = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "as it was" not in str(caught.value)
    assert allocated < 64 << 20
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert secret.read_text() == "as it was"
    assert (secret.stat().st_mtime_ns, secret.stat().st_nlink) == (before.st_mtime_ns, 1)


def test_there_are_many_hostile_snapshots() -> None:
    assert len(ATTACKS) >= 25


def test_verifying_reports_damage_that_hashes_do_not_cover(tmp_path: Path) -> None:
    snapshot = save(tmp_path, 1, make_chunk(range(10)))
    same_rows_twice(Hostile(snapshot, tmp_path))
    (problem,) = verify_snapshot(open_snapshot(snapshot.url)).problems
    assert "occurs more than once" in problem.message


def test_retention_follows_no_link_outside(tmp_path: Path) -> None:
    from sparring.snapshot.retention import retain

    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("as it was")
    root = tmp_path / "root"
    for step in range(4):
        save(root, step, make_chunk([step]))
    (root / "step-000000000" / "link").symlink_to(outside)
    (root / ".stale").symlink_to(outside)
    assert len(retain(root, 2, stale_seconds=0)) == 2
    assert (outside / "secret").read_text() == "as it was"


def test_a_link_is_rejected_even_if_it_points_to_the_right_bytes(tmp_path: Path) -> None:
    """S12"""
    for kind in ("rows", "state", "manifest"):
        snapshot = save(tmp_path / kind, 1, make_chunk(range(10)))
        (path,) = Path(snapshot.url).glob(f"{kind}*")
        path.rename(tmp_path / kind / "moved")
        path.symlink_to(tmp_path / kind / "moved")
        with pytest.raises(SnapshotError, match=rf"{path.name} .*not a regular file"):
            read_all(snapshot.url)
