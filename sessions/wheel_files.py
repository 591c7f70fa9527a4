"""Facts about files of wheels. Without nox, so that tests can import it."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def describe_differences(wheel: Path, folder: Path) -> list[str]:
    """Returns a message if a wheel differs from the wheel with the same name in a folder."""
    other = folder / wheel.name
    if not other.exists():
        return [f"{wheel.name} was not built the second time"]
    if hash_file(wheel) == hash_file(other):
        return []
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(other) as two:
        contents = [
            {each.filename: each.CRC for each in archive.infolist()} for archive in (one, two)
        ]
    names = {name for name, _ in contents[0].items() ^ contents[1].items()}
    what = ", ".join(sorted(names)) or "times or the order of its files"
    return [f"two builds of {wheel.name} differ in {what}"]


def find_paths(wheel: Path, folders: Iterable[str]) -> list[str]:
    """Returns a message for each file of a wheel that contains the path of one of these folders."""
    with zipfile.ZipFile(wheel) as archive:
        return [
            f"{wheel.name}: {name} contains the path {folder} of this machine; compile without it, for "
            "example with -ffile-prefix-map"
            for name in archive.namelist()
            for folder in folders
            if folder.encode() in archive.read(name)
        ]


def describe_platform(wheel: Path) -> str:
    """Returns the systems on which pip installs a wheel, by its tag."""
    found = re.findall(r"manylinux_(\d+)_(\d+)", wheel.name)
    if not found:
        return "any system"
    return "glibc {}.{} or newer".format(*min(tuple(map(int, each)) for each in found))


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
