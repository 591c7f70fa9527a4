"""Finds an nvcc that can compile the GPU code of this package, and prints its path.

    python find_nvcc.py FOLDER                  the nvcc of the machine, or else one of PyPI in FOLDER
    python find_nvcc.py FOLDER --release 13.5   the nvcc of that release from PyPI

PyPI has nvcc only for CUDA 13; the packages of CUDA 12 contain only ptxas and headers.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["find_nvcc", "install_nvcc", "read_release"]

OLDEST, BEYOND = (12, 4), (14, 0)
"""Range of releases that native/device/cuda.cmake accepts: the first supported and first unsupported."""

USUAL = Path("/usr/local/cuda/bin/nvcc")

RELEASE = "13.0"
"""Release to install from PyPI by default."""


class NvccError(Exception):
    """No usable nvcc was found."""


def read_release(nvcc: Path) -> tuple[int, int] | None:
    """Returns the CUDA release of an nvcc, or None if it does not run."""
    try:
        said = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"release (\d+)\.(\d+)", said.stdout)
    return None if found is None else (int(found[1]), int(found[2]))


def find_nvcc() -> Path:
    """Finds the nvcc of the machine: from CUDACXX, PATH or /usr/local/cuda.

    Raises:
        NvccError: there is no nvcc of a supported release; the message lists those found.
    """
    named = os.environ.get("CUDACXX"), shutil.which("nvcc"), USUAL
    refused = []
    for path in (Path(each) for each in named if each):
        release = read_release(path)
        if release is not None and OLDEST <= release < BEYOND:
            return path
        if release is not None:
            refused.append(f"{path} is of CUDA {release[0]}.{release[1]}, which is not supported")
    raise NvccError("; ".join(refused) or "no nvcc on this machine")


def install_nvcc(folder: Path, release: str = RELEASE) -> Path:
    """Installs nvcc and everything it needs to compile and link from PyPI, in a separate folder.

    Raises:
        NvccError: the installation failed; the message ends with the output of pip.
    """
    chosen = folder / release
    if not chosen.exists():
        part = folder / f"{release}.part"
        shutil.rmtree(part, ignore_errors=True)
        major, minor = (int(each) for each in release.split("."))
        exact = ("nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-nvvm")
        # CCCL has different version numbers, but a release for each CUDA release.
        wanted = [*(f"{each}=={release}.*" for each in exact)]
        wanted += [f"nvidia-cuda-cccl>={major}.0,<{major}.{minor + 1}"]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        made = subprocess.run(
            [*pip, "--target", str(part), *wanted], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            raise NvccError(f"cannot install CUDA {release}: {made.stderr.strip()[-2000:]}")
        for root in part.glob("nvidia/cu*"):
            # Names that nvcc and CMake expect.
            (root / "lib64").symlink_to("lib")
            for library in root.glob("lib/libcudart.so.*"):
                (root / "lib" / "libcudart.so").symlink_to(library.name)
        part.rename(chosen)
    for nvcc in chosen.glob("nvidia/cu*/bin/nvcc"):
        if read_release(nvcc) is not None:
            return nvcc
    raise NvccError(f"no nvcc in {chosen} runs; remove that folder, and try again")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--release")
    given = parser.parse_args()
    try:
        if given.release is not None:
            print(install_nvcc(given.folder, given.release))
            return 0
        try:
            print(find_nvcc())
        except NvccError as reason:
            print(f"{reason}; installing nvcc from PyPI", file=sys.stderr)
            print(install_nvcc(given.folder))
    except NvccError as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
