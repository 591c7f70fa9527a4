"""Facts about files of wheels. Without nox, so that tests can import it."""

from __future__ import annotations

import hashlib
import re
import sys
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


def constrain(folder: Path, prefix: str = "") -> str:
    """Returns constraints with which pip takes packages that have a wheel in a folder only from there.

    Otherwise a package index may have the same or a newer version.

    Args:
        folder: Folder of wheels.
        prefix: Beginning of its path where pip runs, for example in a container.
    """
    lines = []
    for wheel in sorted(folder.resolve().glob("*.whl")):
        name, _, python = wheel.name.split("-")[:3]
        version = re.fullmatch(r"cp3(\d+)", python)
        marker = "" if version is None else f' ; python_version == "3.{version[1]}"'
        lines.append(f"{name} @ {Path(f'{prefix}{wheel}').as_uri()}{marker}\n")
    return "".join(lines)


def choose_wheels(folder: Path, wanted: str, version: str) -> list[str]:
    """Returns the wheels of a package, and of the packages of sparring that it requires, with their
    extras, as arguments of pip. It then takes these from nowhere else.

    Args:
        folder: Folder of wheels.
        wanted: Package and extras, such as ``sparring[torch,hkv]``.
        version: Version of Python, such as ``3.11``.

    Raises:
        FileNotFoundError: The folder lacks a wheel.
    """
    extras: dict[str, set[str]] = {}
    wheels: dict[str, Path] = {}
    waiting = [wanted]
    while waiting:
        found = _REQUIREMENT.match(waiting.pop())
        assert found is not None
        name, more = found[1], {*filter(None, re.split(r"[,\s]+", found[2] or ""))}
        if name in extras and more <= extras[name]:
            continue
        extras.setdefault(name, set()).update(more)
        wheels[name] = _find_wheel(folder, name, version)
        for line in _requirements(wheels[name]):
            chosen = _EXTRA.search(line)
            if line.startswith("sparring") and (chosen is None or chosen[1] in extras[name]):
                waiting.append(line)
    # With only `wheel[extra]`, old releases of pip search the index for the package without the extra.
    return [
        argument
        for name, wheel in wheels.items()
        for argument in (
            str(wheel),
            *([f"{wheel}[{','.join(sorted(extras[name]))}]"] if extras[name] else []),
        )
    ]


_REQUIREMENT = re.compile(r"(sparring[\w-]*)\s*(?:\[([^]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")


def _find_wheel(folder: Path, name: str, version: str) -> Path:
    for tag in (f"cp{version.replace('.', '')}", "py3"):
        for wheel in folder.glob(f"{name.replace('-', '_')}-[0-9]*-{tag}-*.whl"):
            return wheel
    raise FileNotFoundError(
        f"{folder} has no wheel of {name} for CPython {version}; run: nox -s build"
    )


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
    return re.findall(r"^Requires-Dist: (.*)", text, re.MULTILINE)


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    # python sessions/wheel_files.py FOLDER [PREFIX]: prints the constraints.
    print(constrain(Path(sys.argv[1]), *sys.argv[2:]), end="")
