"""Importing the package does not import torch; using one of its names does."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sparring_torch


def test_the_plugin_manager_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from sparring import make_plugin_manager\n"
        "assert make_plugin_manager().framework('torch').name == 'torch'\n"
        "assert 'sparring_torch.plugin' in sys.modules\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_found() -> None:
    for name in sparring_torch.__all__:
        assert getattr(sparring_torch, name) is not None
    assert set(dir(sparring_torch)) == set(sparring_torch.__all__)


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Embeding'"):
        _ = sparring_torch.Embeding
