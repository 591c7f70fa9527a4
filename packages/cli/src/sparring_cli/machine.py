"""Facts about this machine and this Python for ``sparring doctor``.

Nothing heavy is imported: versions of other packages come from their metadata. A fact that this
system does not tell is None.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

__all__ = ["Machine", "Native", "inspect_machine", "inspect_native", "list_installed_versions"]

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
"""The features of x86 and Arm processors that kernels use or may use."""

_PACKAGES = ("numpy", "torch", "tensorflow", "pyarrow", "matplotlib", "tbb")

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Processor and memory, as this process may use them."""

    system: str
    processor: str | None
    features: tuple[str, ...]
    usable_cores: int
    """Cores that this process may run on."""
    memory_bytes: int | None
    """All memory, or the limit of this container where that is less."""
    available_bytes: int | None
    """Memory that could be had now without swapping."""
    transparent_huge_pages: str | None
    """``always``, ``madvise`` or ``never``."""
    huge_pages: int | None
    """Huge pages that were set aside at the start of the system."""


@dataclass(frozen=True, slots=True)
class Native:
    """The native library of core."""

    simd_level: str
    """The kernels that run here: ``avx512``, ``avx2`` or ``portable``."""
    num_threads: int
    """Threads of the execution pool."""


def inspect_machine(root: Path = Path("/")) -> Machine:
    """Asks the system; `root` contains ``/proc`` and ``/sys``."""
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
    """Asks the native library."""
    # Here, because the other facts are wanted even if the native library cannot be loaded.
    from sparring.adapter import num_threads, simd_level

    return Native(simd_level(), num_threads())


def list_installed_versions() -> dict[str, str | None]:
    """Package → version, None where it is not installed: first the family, then its libraries."""
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
    """``name: value`` lines; of a name that repeats, the first counts."""
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
