"""Tests that the page on the command line lists the current commands and their options."""

from __future__ import annotations

import sys
from pathlib import Path

from sparring import make_plugin_manager

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs/site"))

from commands import PAGE, render_page  # noqa: E402


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == render_page(page, make_plugin_manager()), "run: python docs/site/commands.py"
