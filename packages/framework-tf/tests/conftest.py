"""Fixtures for all tests of the adapter: less output of TensorFlow, and fresh layer names."""

from __future__ import annotations

import importlib.util
import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.fixture(autouse=True)
def fresh_keras() -> None:
    """Names of layers start again as in a new process, and initial weights are the same in every run."""
    if importlib.util.find_spec("tensorflow") is not None:
        import keras

        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(1)
