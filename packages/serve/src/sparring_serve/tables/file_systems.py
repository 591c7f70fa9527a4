"""Finds file systems on which mapped files are not safe."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["find_remote_file_system", "mapping_warning"]

_MOUNTS = Path("/proc/self/mountinfo")
_REMOTE = re.compile(r"(nfs4?|cifs|smb3|9p|afs|ceph|lustre|gpfs|beegfs|fuse(blk|\..*)?)\Z")
"""Types of file systems whose mapped files may become unreadable. FUSE includes mounts of buckets."""


def find_remote_file_system(path: str | os.PathLike[str], mounts: Path = _MOUNTS) -> str:
    """Returns the type of the file system of a path if it is remote or FUSE; otherwise an empty text.

    Args:
        path: A path, which does not need to exist.
        mounts: List of mounts, in the format of ``/proc/self/mountinfo``.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # for example in a sandbox without /proc
        return ""
    place, best, kind = Path(os.path.realpath(path)), -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, types = before.split(), after.split()
        if len(fields) < 5 or not types:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda each: chr(int(each[1], 8)), fields[4]))
        # A later mount on the same point hides the earlier one.
        if place.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), types[0]
    return kind if _REMOTE.match(kind) else ""


def mapping_warning(path: str | os.PathLike[str]) -> str:
    """Returns a warning if files at a path should not be mapped; otherwise an empty text."""
    kind = find_remote_file_system(path)
    if not kind:
        return ""
    return (
        f"{path} is on a file system of type {kind}: if its server becomes unreachable, or a mapped "
        "file is removed there, this process hangs or ends with SIGBUS; serve from a local disk, for "
        "example by a copy, or by a URL in snapshots with server.cache"
    )
