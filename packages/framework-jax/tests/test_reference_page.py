"""The reference page contains all public names."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

import sparring_jax

PAGE = (Path(__file__).parents[3] / "docs/reference/jax.md").read_text()


@pytest.mark.parametrize("name", [each for each in sparring_jax.__all__ if each != "__version__"])
def test_public_names_exist_and_are_on_the_page(name: str) -> None:
    assert f"`{name}" in PAGE
    assert getattr(sparring_jax, name).__doc__


def test_methods_of_tables_are_on_the_page() -> None:
    public = [each for each in vars(sparring_jax.Tables) if not each.startswith("_")]
    for name in public:
        assert f"`{name}(" in PAGE or f"`{name}`" in PAGE, name
