"""The reference page of the Keras adapter contains each public name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow")

import sparring_tf

PAGE = (Path(__file__).parents[3] / "docs/reference/keras.md").read_text()
WORDS = set(re.findall(r"\w+", "".join(re.findall(r"`[^`]*`", PAGE))))


@pytest.mark.parametrize("name", [name for name in sparring_tf.__all__ if name != "__version__"])
def test_the_page_contains_each_name(name: str) -> None:
    assert getattr(sparring_tf, name) is not None
    assert name in WORDS
