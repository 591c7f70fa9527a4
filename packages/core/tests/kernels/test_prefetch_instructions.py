"""The machine code contains the prefetches of the source."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"

CALLER = """
#include "kernels/key_index.h"
void ask_ahead(const sparring::kernels::KeyIndex& index, uint64_t hash) { index.prefetch(hash); }
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles a file, and found no g++")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for an instruction of x86-64")
@pytest.mark.parametrize("options", [("-O2",), ("-O1", "-fno-inline")])
def test_a_prefetch_of_the_key_index_is_compiled(tmp_path: Path, options: tuple[str, ...]) -> None:
    source = tmp_path / "caller.cc"
    source.write_text(CALLER)
    # GCC deletes calls of functions that only prefetch, unless they are inlined.
    compiled = subprocess.run(
        ["g++", "-std=c++20", *options, "-S", "-o", "-", f"-I{NATIVE}", source],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "prefetch" in compiled.stdout.partition("ask_ahead")[2]
