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


def test_a_lookup_does_not_import_a_compiler() -> None:
    program = (
        "import sys, torch\n"
        "before = len(sys.modules)\n"
        "import sparring_torch\n"
        "assert len(sys.modules) - before < 30, len(sys.modules) - before\n"
        "from sparring_torch import torchrec\n"
        "module = sparring_torch.Embedding(4)\n"
        "module(torch.arange(3))\n"
        "assert len(sys.modules) - before < 600, len(sys.modules) - before\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
