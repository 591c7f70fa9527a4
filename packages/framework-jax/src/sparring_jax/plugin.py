"""Plugin of sparring-jax. Importing it imports no JAX."""

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
    """Why this adapter cannot run here, and what to do; None if it can. Imports no JAX."""
    missing = [name for name in ("jax", "optax") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed; run: pip install jax optax"
    return None


def check_jax() -> None:
    """Raises where this adapter cannot run.

    Raises:
        PluginError: JAX or optax is missing.
    """
    reason = why_unavailable()
    if reason is not None:
        raise PluginError(f"sparring-jax: {reason}")
