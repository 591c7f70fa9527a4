"""Fuzzes snapshots: each must be read completely, or rejected with `SnapshotError`.

The first byte selects a file of a snapshot with a base, which the remaining bytes replace. Lengths and
hashes in the manifest match, because an attacker can set them. The snapshot is then opened and verified,
which reads all rows and states.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fuzz import harness

_INSTRUMENTED = ("sparring.snapshot", "sparring_cli.snapshots")
_MANIFEST = "manifest.json"


@contextmanager
def open_target() -> Iterator[harness.Target]:
    """Returns a target that replaces one file of a small snapshot."""
    import xxhash

    from sparring.errors import SnapshotError
    from sparring.snapshot.format.manifest import hash_blocks
    from sparring.snapshot.reader import open_snapshot
    from sparring_cli.snapshots.verify import verify_snapshot

    with tempfile.TemporaryDirectory() as place:
        folder = write_snapshots(Path(place))
        names = [_MANIFEST, *data_files(folder)]
        intact = {name: (folder / name).read_bytes() for name in names}
        plain = json.loads(intact[_MANIFEST])
        changed = _MANIFEST

        def write_manifest(body: bytes) -> None:
            digest = xxhash.xxh3_128_hexdigest(body).encode()
            (folder / _MANIFEST).write_bytes(body + b'\n "hash": "%b"\n}\n' % digest)

        def replace(name: str, content: bytes) -> None:
            entry: dict[str, Any] = next(each for each in plain["files"] if each["name"] == name)

            def read_into(offset: int, buffer: memoryview) -> None:
                buffer[:] = content[offset : offset + len(buffer)]

            hashes = hash_blocks(read_into, len(content))
            values = {"size_bytes": len(content), "hash": hashes.whole, "blocks": hashes.blocks}
            files = [each | values if each is entry else each for each in plain["files"]]
            (folder / name).write_bytes(content)
            write_manifest(json.dumps({**plain, "files": files})[:-1].encode() + b",")

        def target(data: bytes) -> None:
            nonlocal changed
            if changed != _MANIFEST:
                (folder / changed).write_bytes(intact[changed])
            changed = names[data[0] % len(names)] if data else _MANIFEST
            content = data[1:]
            if changed == _MANIFEST:
                write_manifest(content)
            else:
                replace(changed, content)
            with suppress(SnapshotError):
                verify_snapshot(open_snapshot(folder))

        plain.pop("hash")
        yield target


def write_snapshots(place: Path) -> Path:
    """Writes a snapshot, and a delta on it; returns the folder of the delta."""
    import numpy as np

    from sparring import ScanChunk, SnapshotWriter, TableDescription
    from sparring.contracts import TableConfig
    from sparring.snapshot.row_router import SnapshotOptions

    tables = [
        TableDescription.of(TableConfig("item", 3, state_width=1, state_method="rowwise_adagrad")),
        TableDescription.of(TableConfig("user", 2, dtype="bfloat16")),
    ]
    base = None
    for step in (1, 2):
        url = str(place / f"step-{step}")
        options = SnapshotOptions(num_ranges=1)
        writer = SnapshotWriter(url, step=step, base=base, options=options)
        for table in tables:
            keys = np.arange(-3, 5, dtype=np.int64) * step
            rows = np.full((len(keys), table.width), step, table.numpy_dtype)
            chunk = ScanChunk(keys, rows, np.zeros(len(keys), np.uint64))
            writer.write_table(table, [chunk], [] if base is None else [keys + 100])
        writer.write_state("optimizer", {"steps": step}, {"moment": np.arange(3) + step})
        writer.finish()
        writer.commit()
        base = url
    return place / "step-2"


def data_files(folder: Path) -> list[str]:
    """Returns the names of the files that a manifest lists, in order."""
    return sorted(each["name"] for each in json.loads((folder / _MANIFEST).read_text())["files"])


def seeds() -> Iterator[bytes]:
    """Yields the files of the snapshot."""
    with tempfile.TemporaryDirectory() as place:
        folder = write_snapshots(Path(place))
        content = (folder / _MANIFEST).read_bytes()
        yield b"\0" + content[: content.rindex(b'\n "hash": "')]
        for number, name in enumerate(data_files(folder), 1):
            yield bytes([number]) + (folder / name).read_bytes()


if __name__ == "__main__":
    sys.exit(harness.run(sys.argv[1:], _INSTRUMENTED, open_target))
