"""Plugin of sparring-jax. Importing it does not import JAX."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from sparring.contracts import API_VERSION, FrameworkDescriptor, hookimpl
from sparring.errors import PluginError


@hookimpl
def sparring_register_framework() -> Sequence[FrameworkDescriptor]:
    return [
        FrameworkDescriptor(
            name="jax",
            api_version=API_VERSION,
            summary="JAX: rows are an argument of the jitted step; optax's optimizers.",
            unavailable=why_unavailable,
            module="sparring_jax",
        )
    ]


def why_unavailable() -> str | None:
    """Returns why this adapter cannot run here and how to fix it, or None. Does not import JAX."""
    missing = [name for name in ("jax", "optax") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed; run: pip install jax optax"
    return None


def check_jax() -> None:
    """Raises an error if this adapter cannot run.

    Raises:
        PluginError: JAX or optax is not installed.
    """
    reason = why_unavailable()
    if reason is not None:
        raise PluginError(f"sparring-jax: {reason}")
