"""Facts about this machine and this Python for ``sparring doctor``.

Imports no large packages: their versions come from their metadata. Facts that the system does not
report are None.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

__all__ = [
    "Machine",
    "Native",
    "inspect_lookup_server",
    "inspect_machine",
    "inspect_native",
    "list_installed_versions",
]

_FEATURES = (
    "sse4_2",
    "avx2",
    "fma",
    "bmi2",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "asimd",
    "sve",
)
"""Features of x86 and Arm processors that kernels use or may use."""

_PACKAGES = ("numpy", "torch", "tensorflow", "pyarrow", "matplotlib", "tbb")

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Processor and memory that this process may use."""

    system: str
    processor: str | None
    features: tuple[str, ...]
    usable_cores: int
    """Cores that this process may run on."""
    memory_bytes: int | None
    """Total memory, or the limit of this container if it is lower."""
    available_bytes: int | None
    """Memory that is available without swapping."""
    transparent_huge_pages: str | None
    """``always``, ``madvise`` or ``never``."""
    huge_pages: int | None
    """Number of huge pages reserved at system start."""


@dataclass(frozen=True, slots=True)
class Native:
    """The native library of core."""

    simd_level: str
    """Kernels in use: ``avx512``, ``avx2`` or ``portable``."""
    num_threads: int
    """Number of threads of the execution pool."""


def inspect_machine(root: Path = Path("/")) -> Machine:
    """Queries the system; `root` contains ``/proc`` and ``/sys``."""
    cpu = _fields(root / "proc/cpuinfo")
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    memory = _fields(root / "proc/meminfo")
    available = _kibibytes(memory.get("MemAvailable"))
    total = _kibibytes(memory.get("MemTotal"))
    limit = _container_limit(root)
    if total is not None and limit is not None and limit < total:
        total = limit
        available = None if available is None else min(available, limit)
    huge_pages = memory.get("HugePages_Total", "")
    return Machine(
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        processor=cpu.get("model name"),
        features=tuple(feature for feature in _FEATURES if feature in flags),
        usable_cores=_usable_cores(),
        memory_bytes=total,
        available_bytes=available,
        transparent_huge_pages=_choose_member(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        huge_pages=int(huge_pages) if huge_pages.isdigit() else None,
    )


def inspect_native() -> Native:
    """Queries the native library."""
    # Imported here, because the other facts must be available even if the native library is broken.
    from sparring.adapter import num_threads, simd_level

    return Native(simd_level(), num_threads())


def inspect_lookup_server() -> str | None:
    """Returns which server `sparring serve` starts for serving snapshots, and why; None without
    sparring-serve."""
    package = importlib.util.find_spec("sparring_serve")
    if package is None or package.origin is None:
        return None
    executable = Path(package.origin).parent / "bin/sparring-serve-native"
    if not executable.exists():
        return (
            "python, because the native server was not built; run: sudo apt install libgrpc++-dev "
            "pkg-config, and install sparring-serve again"
        )
    checked = subprocess.run([executable, "--check"], capture_output=True, text=True, check=False)
    if checked.returncode:
        return f"python, because the native server cannot start: {checked.stderr.strip()}"
    return f"native, with {checked.stdout.strip()}"


def list_installed_versions() -> dict[str, str | None]:
    """Returns the versions of the sparring packages, then of their libraries; None if not installed."""
    family = {
        name.lower().replace("_", "-")
        for name in (each.metadata["Name"] for each in _family_distributions())
    }
    versions = {"python": platform.python_version()}
    names = ["sparring", *sorted(family - {"sparring"}), *_PACKAGES]
    return versions | {name: _version(name) for name in names}


def _family_distributions() -> list[metadata.Distribution]:
    found = []
    for distribution in metadata.distributions():
        name: str | None = distribution.metadata["Name"]
        if name and name.lower().replace("_", "-").startswith("sparring"):
            found.append(distribution)
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _fields(path: Path) -> Mapping[str, str]:
    """Parses ``name: value`` lines; if a name repeats, the first one counts."""
    fields: dict[str, str] = {}
    for line in _read(path).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _container_limit(root: Path) -> int | None:
    for path in _CGROUP_LIMITS:
        text = _read(root / path.relative_to("/")).strip()
        if text.isdigit():
            return int(text)
    return None


def _choose_member(path: Path) -> str | None:
    """``always [madvise] never`` → madvise"""
    _, bracket, rest = _read(path).partition("[")
    return rest.partition("]")[0] if bracket else None


def _kibibytes(text: str | None) -> int | None:
    number = (text or "").partition(" ")[0]
    return int(number) * 1024 if number.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
