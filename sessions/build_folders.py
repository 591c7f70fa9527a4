"""Folders of CMake that are kept between runs of a session."""

from __future__ import annotations

import re
import shutil
from pathlib import Path


def reuse_folder(folder: Path) -> Path:
    """Returns a build folder, after deleting it if the compiler cache that it uses was uninstalled.

    CMake keeps the value of CMAKE_CXX_COMPILER_LAUNCHER with which a folder was first configured.
    """
    file = folder / "CMakeCache.txt"
    text = file.read_text() if file.exists() else ""
    launchers = re.findall(r"^CMAKE_\w+_COMPILER_LAUNCHER:\w+=(.+)$", text, re.MULTILINE)
    if any(shutil.which(each) is None for each in launchers):
        shutil.rmtree(folder)
    return folder
