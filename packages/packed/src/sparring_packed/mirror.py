"""Local copies of serving snapshots on another file system, so that they can be mapped.

    list ──► manifests of new ones ──► files of our partitions ──► hashes ──► rename ──► remove old ones

fsspec transfers the files. A copy is complete or invisible, like the original.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import fsspec  # type: ignore[import-untyped]  # it ships no types
import xxhash

from sparring.adapter import locate, open_root
from sparring.errors import SnapshotDamagedError, SnapshotError, SnapshotIOError
from sparring_packed.gate import GATE_NAME, Gate, read_gate, write_gate
from sparring_packed.manifest import (
    ModelFile,
    ServingFile,
    ServingManifest,
    decode_manifest,
    read_manifest_text,
    text_hash,
)

__all__ = ["Mirror"]

_log = logging.getLogger(__name__)

_HASHED_AT_ONCE = 8 << 20
_RETRY_SECONDS = 60.0


class Mirror:
    """Copies of the newest serving snapshots at a URL and of their bases.

    Processes of one machine may share the folder: one of them copies, and the others wait for it and use
    the copies.

    Args:
        url: URL of a folder of serving snapshots, or of a single one.
        cache: a local folder for copies, which is created. It contains a folder per URL and range of
            partitions.
        partitions: half-open range of partitions whose files are copied.
        keep: number of newest copies that are kept, with their bases.

    Raises:
        SnapshotError: there is no serving snapshot, or it is damaged.
        SnapshotIOError: the file system failed, and there is no earlier copy.
    """

    def __init__(
        self, url: str, cache: os.PathLike[str], partitions: tuple[int, int], keep: int
    ) -> None:
        self.url = url.rstrip("/")
        self._partitions, self._keep = partitions, keep
        self._manifests: dict[str, ServingManifest] = {}
        self._refused: dict[str, tuple[float, SnapshotError]] = {}
        own = f"{text_hash(self.url.encode())[:16]}.{partitions[0]:04d}-{partitions[1]:04d}"
        self._folder = Path(cache, own).absolute()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SnapshotIOError(
                f"copies of {self.url} cannot be stored in {self._folder}: {error.strerror}; choose "
                "another cache folder",
                url=self.url,
            ) from error
        self._gate: Gate | None = None
        self._damaged_gate = ""
        self._only: str | None = None
        try:
            self._only = _find_snapshot_name(self.url)
            self.refresh()
        except SnapshotIOError as error:
            if not any(self._folder.glob("*/manifest.json")):
                raise
            _log.warning(
                "newer serving snapshots cannot be copied, earlier copies are used: %s", error
            )

    @property
    def path(self) -> str:
        """The folder of copies, or the copy of the requested serving snapshot."""
        return str(self._folder if self._only is None else self._folder / self._only)

    def refresh(self) -> None:
        """Copies newer serving snapshots.

        Raises:
            SnapshotDamagedError: the transferred files differ from the manifest. They are
                discarded, and a new attempt is made after a minute.
            SnapshotIOError: the file system failed; nothing changed.
        """
        with self._lock_cache():
            manifests = self._list_manifests()
            if not manifests:
                return
            gate = self._read_gate()
            newest = max(manifests, key=lambda name: (manifests[name].order, name))
            wanted = self._only or gate.pin or newest
            # The base of a delta is copied first.
            for name in reversed(_chain(wanted, manifests)):
                if not (self._folder / name).exists():
                    self._copy(name, manifests[name])
            if self._only is None:
                # Readers of the copies report a pinned version that does not exist.
                has_copy = (self._folder / GATE_NAME).exists()
                if gate != self._gate and (has_copy or gate != Gate()):
                    write_gate(self._folder, gate)
                self._gate = gate
                self._remove_old(gate.pin)
            else:
                self._remove_old(self._only)

    @contextmanager
    def _lock_cache(self) -> Iterator[None]:
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read_gate(self) -> Gate:
        try:
            return Gate() if self._only is not None else read_gate(self.url)
        except SnapshotDamagedError as error:
            if str(error) != self._damaged_gate:
                _log.warning("the gate of %s is ignored: %s", self.url, error)
            self._damaged_gate = str(error)
            return Gate()

    def _list_manifests(self) -> Mapping[str, ServingManifest]:
        """Returns the manifests at the URL by name. Each is read once, because they do not change."""
        root = self.url if self._only is None else self.url.rpartition("/")[0]
        try:
            names = set(open_root(root).names())
        except FileNotFoundError:
            names = set()
        except OSError as error:
            raise SnapshotIOError(
                f"{root}: serving snapshots cannot be listed: {error}; check that the file system is "
                "reachable",
                url=root,
            ) from error
        known = {name: each for name, each in self._manifests.items() if name in names}
        damage: dict[str, str] = {}
        for name in names - known.keys():
            try:
                known[name] = decode_manifest(read_manifest_text(f"{root}/{name}"))
            except (SnapshotIOError, SnapshotDamagedError):
                raise
            except SnapshotError:
                continue  # not committed yet
            except ValueError as error:
                damage[name] = str(error)
        self._manifests = known
        # The step of a damaged manifest is unknown. Its snapshot is considered newer if its name is
        # greater.
        if damage and max(damage) > max(known, default=""):
            name = max(damage)
            raise SnapshotDamagedError(
                f"serving snapshot {root}/{name}: manifest.json is damaged: {damage[name]}; publish it "
                "again",
                url=f"{root}/{name}",
                file="manifest.json",
                offset=0,
            )
        return known

    def _copy(self, name: str, manifest: ServingManifest) -> None:
        failed_at, failure = self._refused.get(name, (-_RETRY_SECONDS, None))
        if failure is not None and time.monotonic() - failed_at < _RETRY_SECONDS:
            raise failure
        root = self.url if self._only is None else self.url.rpartition("/")[0]
        url = f"{root}/{name}"
        staging = self._folder / f".{name}-{secrets.token_hex(4)}"
        files: list[ServingFile | ModelFile] = [
            *(each for each in manifest.files if self._is_ours(each)),
            *manifest.model,
        ]
        try:
            staging.mkdir()
            _download(url, [each.name for each in files], staging)
            for each in files:
                _check(url, staging / each.name, each)
            (staging / "manifest.json").write_bytes(read_manifest_text(url))
            for path in [*staging.iterdir(), staging]:
                _sync(path)
            staging.rename(self._folder / name)
            _sync(self._folder)
        except SnapshotDamagedError as error:
            self._refused[name] = time.monotonic(), error
            raise
        except OSError as error:
            raise SnapshotIOError(
                f"serving snapshot {url} cannot be copied to {self._folder}: {error}; check the free "
                "space, and that the file system is reachable",
                url=url,
            ) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _is_ours(self, file: ServingFile) -> bool:
        begin, end = self._partitions
        return file.partitions[0] < end and begin < file.partitions[1]

    def _remove_old(self, pinned: str) -> None:
        """Removes copies that are no longer kept, and temporary folders of killed processes.

        Args:
            pinned: name of a copy that is kept; empty: none.
        """
        copies = {}
        for path in self._folder.iterdir():
            if path.is_dir() and path.name.startswith("."):
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_dir():
                copies[path.name] = decode_manifest((path / "manifest.json").read_bytes())
        newest = sorted(copies, key=lambda name: (copies[name].order, name))[-self._keep :]
        kept = {each for name in (*newest, pinned) for each in _chain(name, copies)}
        for name in copies.keys() - kept:
            # Renamed first, so that no process sees an incomplete copy.
            hidden = self._folder / f".{name}-{secrets.token_hex(4)}"
            (self._folder / name).rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)


def _find_snapshot_name(url: str) -> str | None:
    """Returns the name of the serving snapshot at a URL, or None if it is a folder or does not exist."""
    place, name = locate(url)
    try:
        return name if place.is_committed(name) else None
    except OSError as error:
        raise SnapshotIOError(
            f"serving snapshot {url} cannot be read: {error}; check that its file system is reachable",
            url=url,
        ) from error


def _chain(name: str, manifests: Mapping[str, ServingManifest]) -> list[str]:
    """Returns the names of a serving snapshot and its bases, as far as they exist."""
    chain: list[str] = []
    while name in manifests and name not in chain:
        chain.append(name)
        base = manifests[name].base
        name = "" if base is None else base.name
    return chain


def _download(url: str, names: list[str], folder: Path) -> None:
    if not names:
        return
    try:
        system, path = fsspec.core.url_to_fs(url)
        system.get([f"{path}/{name}" for name in names], [str(folder / name) for name in names])
    except OSError:
        raise
    except Exception as error:  # exceptions of the file system's client
        raise OSError(f"{type(error).__name__}: {error}") from error


def _check(url: str, path: Path, expected: ServingFile | ModelFile) -> None:
    hashed, size = xxhash.xxh3_128(), 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_HASHED_AT_ONCE):
            hashed.update(piece)
            size += len(piece)
    if (size, hashed.hexdigest()) != (expected.size_bytes, expected.hash):
        raise SnapshotDamagedError(
            f"serving snapshot {url}: {expected.name} was copied with {size:,} bytes and the hash "
            f"{hashed.hexdigest()}, expected {expected.size_bytes:,} bytes and {expected.hash} as in its "
            "manifest; publish it again",
            url=url,
            file=expected.name,
            offset=0,
        )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
