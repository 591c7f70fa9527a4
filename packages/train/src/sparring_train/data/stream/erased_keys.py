"""Keys that `sparring erase` has removed from a run, so that a replay does not train them again.

    <snapshots.url>/cuts/<random>.erased.json      {"table": "user", "salt": "…", "hashes": ["…", …]}

Each erasure adds a file, if the run has recorded cuts. It contains keyed hashes, from which a string
cannot be computed. A number can be found by trying all numbers.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable

import fsspec  # type: ignore[import-untyped]  # it ships no types
import numpy as np
import numpy.typing as npt

from sparring.errors import DataError
from sparring_train.columns import ColumnBatch, Schema

__all__ = ["ErasedKeys", "record_erased_keys"]

_ENDING = ".erased.json"
_HASH_BYTES = 16


def record_erased_keys(snapshots_url: str, table: str, keys: Iterable[int]) -> str | None:
    """Adds keys of a table to the list of a run. Returns the file, or None if the run has no cuts.

    Raises:
        OSError: the file cannot be written.
    """
    system, path = fsspec.core.url_to_fs(snapshots_url)
    folder = f"{path.rstrip('/')}/cuts"
    if not system.isdir(folder):
        return None
    salt = secrets.token_bytes(16)
    hashes = [_hash_of(int(key), salt) for key in keys]
    name = f"{folder}/{secrets.token_hex(8)}{_ENDING}"
    with system.open(f"{name}.unfinished", "w") as file:
        json.dump({"table": table, "salt": salt.hex(), "hashes": hashes}, file)
    system.mv(f"{name}.unfinished", name)
    return name


class ErasedKeys:
    """The erased keys of a run.

    Args:
        snapshots_url: folder of the run's snapshots.

    Raises:
        DataError: the list cannot be read.
    """

    def __init__(self, snapshots_url: str) -> None:
        # Table → salt and hashes of each erasure.
        self._hashes: dict[str, list[tuple[bytes, frozenset[str]]]] = {}
        try:
            system, path = fsspec.core.url_to_fs(snapshots_url)
            folder = f"{path.rstrip('/')}/cuts"
            system.invalidate_cache(folder)
            for name in sorted(system.glob(f"{folder}/*{_ENDING}")):
                found = json.loads(system.cat_file(name))
                each = bytes.fromhex(found["salt"]), frozenset(found["hashes"])
                self._hashes.setdefault(found["table"], []).append(each)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"reading the erased keys of the run in {snapshots_url} failed: {error!r}; restore the "
                f"files cuts/*{_ENDING}",
                path=snapshots_url,
            ) from error

    def find_kept(self, batch: ColumnBatch, schema: Schema) -> npt.NDArray[np.bool_]:
        """Returns ``(b,)``, whether each event contains none of the keys."""
        is_kept = np.ones(len(batch), np.bool_)
        for feature in schema.features:
            erasures = self._hashes.get(feature.table_name)
            if erasures is None:
                continue
            column = batch.ids[feature.name]
            unique, places = np.unique(column.ids, return_inverse=True)
            is_erased = np.array([_is_in(int(key), erasures) for key in unique], np.bool_)
            events = np.repeat(np.arange(len(batch)), column.counts)
            is_kept[events[is_erased[places]]] = False
        return is_kept


def _is_in(key: int, erasures: list[tuple[bytes, frozenset[str]]]) -> bool:
    return any(_hash_of(key, salt) in hashes for salt, hashes in erasures)


def _hash_of(key: int, salt: bytes) -> str:
    content = key.to_bytes(8, "little", signed=True)
    return hashlib.blake2b(content, digest_size=_HASH_BYTES, key=salt).hexdigest()
