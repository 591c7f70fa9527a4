"""Identities of the files of a run, by which a resumed run notices that they have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from sparring.errors import DataError
from sparring_train.data.table.files import TableFile

__all__ = ["DATA_FILES", "describe_changes", "identify_files"]

DATA_FILES = "data_files"
"""Key of the identities in `PinnedDataset.pinned`."""

_PIECES, _PIECE_BYTES = 8, 8 << 10
"""Number and size of the pieces of a file that are hashed. Smaller files are hashed completely."""
_MAX_FILES = 256
"""Number of files whose pieces are read at the same time, because object stores take long to answer."""
_MAX_SHOWN = 3


def identify_files(files: Sequence[TableFile]) -> dict[str, str]:
    """Returns the identity of each file: its size, and a hash of pieces of its content.

    Args:
        files: files of one data set, in order.

    Returns:
        Path relative to the folder that contains all files → identity.

    Raises:
        DataError: a file cannot be read.
    """
    folder = _common_folder([each.path for each in files])
    found: dict[str, str] = {}
    for begin in range(0, len(files), _MAX_FILES):
        part = files[begin : begin + _MAX_FILES]
        names = [each.path[len(folder) :] for each in part]
        found.update(zip(names, _identify(part), strict=True))
    return found


def _identify(files: Sequence[TableFile]) -> list[str]:
    system, paths = files[0].system, [each.path for each in files]
    try:
        sizes = [int(each) for each in system.sizes(paths)]
        pieces = [_pieces(each) for each in sizes]
        names = [path for path, each in zip(paths, pieces, strict=True) for _ in each]
        begins, ends = zip(*(piece for each in pieces for piece in each), strict=True)
        contents = iter(system.cat_ranges(names, list(begins), list(ends), on_error="raise"))
    except (OSError, TypeError, ValueError) as error:
        more = f" and {len(paths) - 1:,} more files" if len(paths) > 1 else ""
        raise DataError(
            f"reading {paths[0]}{more} failed: {error}; check data.path and access rights",
            path=paths[0],
        ) from error
    return [
        f"{size} bytes, {_hash([next(contents) for _ in each])}"
        for size, each in zip(sizes, pieces, strict=True)
    ]


def _pieces(size: int) -> list[tuple[int, int]]:
    """Returns begin and end of the pieces of a file that are hashed."""
    if size <= _PIECES * _PIECE_BYTES:
        return [(0, size)]
    last = size - _PIECE_BYTES
    begins = [last * number // (_PIECES - 1) for number in range(_PIECES)]
    return [(begin, begin + _PIECE_BYTES) for begin in begins]


def _hash(contents: Sequence[bytes]) -> str:
    return hashlib.blake2b(b"".join(contents), digest_size=16).hexdigest()


def _common_folder(paths: Sequence[str]) -> str:
    """Returns the folder that contains all paths, with a slash at the end."""
    first, last = min(paths), max(paths)
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    prefix = first if same is None else first[:same]
    return prefix[: prefix.rfind("/") + 1]


def describe_changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Returns a description of the files that differ; empty if none do."""
    changes = [
        *(f"{name} is missing" for name in before if name not in now),
        *(f"{name} is new" for name in now if name not in before),
        *(f"{name} has changed" for name in before if now.get(name, before[name]) != before[name]),
    ]
    more = len(changes) - _MAX_SHOWN
    return ", ".join(changes[:_MAX_SHOWN]) + (f" and {more:,} more differences" if more > 0 else "")
