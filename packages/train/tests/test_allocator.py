"""glibc keeps the memory of freed arrays during `sparring train`."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from sparring_train.run.allocator import keep_freed_memory

def count_page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(1 << 18) for _ in range(32)]
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    assert keep_freed_memory()
count_page_faults()
print(count_page_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_arrays_of_the_same_size_cause_no_page_faults() -> None:
    def run(argument: str) -> int:
        variables = {key: each for key, each in os.environ.items() if "MALLOC" not in key}
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, argument],
            env=variables, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return int(ran.stdout)

    assert run("keep") < 500
    assert run("default") > 4000
