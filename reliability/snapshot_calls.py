"""Makes each call of the C library fail in turn while snapshots are saved, with libfiu.

It intercepts calls that `sparring_testing.faults.faulty_disk`, which wraps `os`, does not: short writes,
`close`, and calls of Python itself. It does not intercept calls with the descriptor of a folder
(`openat`, `renameat`, `unlinkat`) nor `preadv2`, which the other one does.

A separate process saves, because the library must be loaded before all others.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from reliability.report import Report
from reliability.small_snapshots import save, scratch_folder
from reliability.snapshot_space import Outcomes, continue_saving, save_acknowledged, try_save

__all__ = ["TRIALS", "run"]

TRIALS = 400

_POINTS = [
    f"posix/io/{name}"
    for name in (
        *("oc/open", "oc/close", "sync/fsync", "sync/fdatasync", "dir/rename", "dir/unlink"),
        *("rw/read", "rw/pread", "rw/preadv", "rw/write", "rw/pwrite", "rw/pwritev"),
        *("rw/read/reduce", "rw/pread/reduce", "rw/preadv/reduce"),
        *("rw/write/reduce", "rw/pwrite/reduce", "rw/pwritev/reduce"),
    )
]
"""Excludes reading folders: Python closes one while it raises an error, when no callback may run."""

_FOLDERS = ("/usr/lib/fiu", "/usr/lib/x86_64-linux-gnu/fiu", "/usr/local/lib/fiu")
_PRELOADED = ("fiu_run_preload.so", "fiu_posix_preload.so")
_SECONDS = 1_200

_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_uint),
)


def run(trials: int) -> Report:
    """Makes each call of a save fail, then each once more with another error, and so on."""
    folder = next((Path(each) for each in _FOLDERS if Path(each, _PRELOADED[1]).exists()), None)
    if folder is None:
        return Report(0, skipped="libfiu is not installed; run: apt install fiu-utils")
    environment = os.environ | {
        "LD_PRELOAD": " ".join(str(folder / name) for name in _PRELOADED),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "reliability.snapshot_calls", str(trials)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=_SECONDS,
    )
    if ended.returncode:
        return Report(trials, failures=[f"the saving process ended: {ended.stderr[-2000:]}"])
    outcome = json.loads(ended.stdout.splitlines()[-1])
    return Report(trials, outcome["counts"], outcome["failures"])


class _Faults:
    """Makes one call fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_counting = False
        self._failing, self._number = -1, errno.EIO
        self._callback = _Callback(self._call)  # the library calls it, so it must stay alive
        library = ctypes.CDLL("libfiu.so.0")
        library.fiu_init(0)
        for point in _POINTS:
            if library.fiu_enable_external(point.encode(), 1, None, 0, self._callback):
                raise RuntimeError(f"libfiu does not support the point {point}")

    def begin(self, failing: int = -1, number: int = errno.EIO) -> None:
        """Counts calls from now on, and makes one fail."""
        self.calls, self._failing, self._number = [], failing, number
        self.is_counting = True

    def _call(self, name: bytes, failure: Any, information: Any, _flags: Any) -> int:
        if not self.is_counting:
            return 0
        self.calls.append(name.decode())
        if len(self.calls) - 1 != self._failing:
            return 0
        failure[0], information[0] = 1, self._number
        return 1


def _save_with_faults(trials: int) -> dict[str, Any]:
    """Runs in the separate process."""
    faults, outcomes = _Faults(), Outcomes()
    outcomes.counts = {name: count for name, count in outcomes.counts.items() if "disk" not in name}
    with scratch_folder(in_memory=True) as folder:
        save_acknowledged(folder, outcomes)
        faults.begin()
        save(folder / "dry", 1)
        faults.is_counting = False
        num_calls = len(faults.calls)
        for trial in range(trials):
            failing = trial % num_calls
            number = errno.ENOSPC if trial // num_calls % 2 else errno.EIO
            faults.begin(failing, number)
            try_save(folder, "a call that failed", outcomes)
            faults.is_counting = False
            point = faults.calls[failing] if failing < len(faults.calls) else "no call"
            outcomes.counts[point] = outcomes.counts.get(point, 0) + 1
            continue_saving(folder, f"call {failing}, {point}, {errno.errorcode[number]}", outcomes)
    return {"counts": outcomes.counts, "failures": outcomes.failures}


if __name__ == "__main__":
    print(json.dumps(_save_with_faults(int(sys.argv[1]))))
