"""Finds the mpiexec of the mpich wheel."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

_beside_python = Path(sys.executable).parent / "mpiexec"
MPIEXEC = str(_beside_python) if _beside_python.exists() else shutil.which("mpiexec") or ""


def _why_not() -> str | None:
    if importlib.util.find_spec("sparring_mpi") is None:
        return 'sparring-mpi is not installed: pip install "sparring[mpi]"'
    if not MPIEXEC:
        return 'mpiexec was not found: pip install "sparring[mpi]"'
    return None


needs_mpi = pytest.mark.skipif(_why_not() is not None, reason=str(_why_not()))
