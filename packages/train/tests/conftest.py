"""Fixtures of tests in several folders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .config.config_runs import Runs


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have empty figures, because matplotlib takes most of the time of a small run."""
    from sparring_train.report import canvas, figures, time_figures

    def empty(title: str, caption: str, draw: object) -> canvas.Figure:
        return canvas.Figure(title, caption, "<svg></svg>")

    for module in (figures, time_figures):
        monkeypatch.setattr(module, "make_figure", empty)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Runs in a folder, which is the current one during the tests of a module."""
    # It imports PyTorch.
    from .config.config_runs import made_runs

    yield from made_runs(tmp_path_factory.mktemp("runs"))
