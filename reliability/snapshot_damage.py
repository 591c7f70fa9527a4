"""Damages every file of a snapshot: flipped bits, and files truncated, swapped or missing.

A folder contains a full snapshot and a delta based on it. Each trial damages one file, reads everything,
expects an error with that file and block, and restores the file. One file is larger than a block, so that
offsets are tested too.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from reliability.report import Report
from reliability.small_snapshots import check, save, scratch_folder
from sparring import SnapshotWriter, open_snapshot
from sparring.errors import SnapshotDamagedError, SnapshotError
from sparring.snapshot.format.manifest import BLOCK_BYTES, MANIFEST_NAME

__all__ = ["TRIALS", "run"]

TRIALS = 22_000
_BITS_PER_OTHER = 10
"""Number of flipped bits per truncation, swap or removal."""


def run(trials: int) -> Report:
    """Ten of eleven trials flip a bit; the others truncate, swap or remove alternately."""
    counts = {"bits flipped": 0, "files cut off": 0, "files swapped": 0, "files missing": 0}
    detected = located = 0
    failures: list[str] = []
    with scratch_folder(in_memory=True) as folder:
        urls = _make(folder)
        files = sorted(path for url in urls for path in Path(url).iterdir())
        intact = {path: path.read_bytes() for path in files}
        for trial in range(trials):
            seed = random.Random(trial)
            path = seed.choice(files)
            kind = _damage(seed, trial, path, files, intact)
            damaged = path.read_bytes() if path.exists() else None
            counts[kind] += 1
            found = _read(urls)
            path.write_bytes(intact[path])
            what = f"trial {trial}: {kind}, {path.parent.name}/{path.name}"
            if found is None:
                failures.append(f"{what}: not detected")
                continue
            detected += 1
            if path.name not in str(found):
                failures.append(f"{what}: the error names another file: {found}")
            elif not _is_located(found, path, intact[path], damaged):
                failures.append(f"{what}: the error names another offset: {found}")
            else:
                located += 1
        if _read(urls) is not None:
            failures.append("the restored snapshot cannot be read")
    counts |= {"detected": detected, "named with file and offset": located}
    return Report(trials, counts, failures)


def _make(folder: Path) -> list[str]:
    first = save(folder, 1)
    second = save(folder, 2, base=first.url)
    writer = SnapshotWriter(str(folder / "large"), step=3)
    writer.write_state("model", None, {"weights": np.arange(300_000, dtype=np.float64)})
    writer.finish()
    large = writer.commit()
    return [second.url, first.url, large.url]


def _damage(
    seed: random.Random, trial: int, path: Path, files: list[Path], intact: dict[Path, bytes]
) -> str:
    """Damages a file in one way; returns its name."""
    data = intact[path]
    other = trial // (_BITS_PER_OTHER + 1) % 3
    if trial % (_BITS_PER_OTHER + 1):
        bit = seed.randrange(8 * len(data))
        with path.open("r+b") as file:
            file.seek(bit // 8)
            file.write(bytes([data[bit // 8] ^ 1 << bit % 8]))
        return "bits flipped"
    if other == 0:
        path.write_bytes(data[: seed.randrange(len(data))])
        return "files cut off"
    if other == 1:
        another = seed.choice([each for each in files if intact[each] != data])
        path.write_bytes(intact[another])
        return "files swapped"
    path.unlink()
    return "files missing"


def _is_located(error: SnapshotError, path: Path, intact: bytes, found: bytes | None) -> bool:
    """Returns whether the error contains the location of the damage, as exactly as possible.

    Args:
        intact: original contents of the file.
        found: damaged contents; None if the file is missing.
    """
    is_manifest = path.name == MANIFEST_NAME
    if not isinstance(error, SnapshotDamagedError):
        # A folder without a manifest is not a snapshot.
        return is_manifest and found is None
    if is_manifest and error.file != MANIFEST_NAME:
        # A manifest of another snapshot is valid: the error names the first file that contradicts it.
        return found is not None and len(found) != len(intact)
    if found is None or is_manifest:
        # The manifest is read and hashed as a whole.
        return bool(error.offset == 0)
    if len(found) != len(intact):
        return bool(error.offset == min(len(found), len(intact)))
    first = next(
        at for at, (one, other) in enumerate(zip(intact, found, strict=True)) if one != other
    )
    return bool(error.offset == first // BLOCK_BYTES * BLOCK_BYTES)


def _read(urls: list[str]) -> SnapshotError | None:
    """Reads all contents of the snapshots; returns the errors."""
    try:
        check(open_snapshot(urls[0]))
        open_snapshot(urls[1]).state("optimizer")
        open_snapshot(urls[2]).state("model")
    except SnapshotError as error:
        return error
    return None
