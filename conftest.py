"""Settings for all tests of this checkout."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import hypothesis

# On a busy machine an example takes longer than hypothesis allows by default.
hypothesis.settings.register_profile(
    "busy",
    parent=hypothesis.settings.default,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("busy")


def pytest_configure() -> None:
    """Searches each state of ``sys.path`` for plugins once: tests create thousands of plugin managers."""
    from sparring.plugins import registry
    from sparring.plugins.distributions import PluginSource, find_plugins

    @functools.cache
    def find(only: str | None, *_: object) -> tuple[PluginSource, ...]:
        return tuple(find_plugins(only))

    def find_once(only: str | None = None) -> Iterator[PluginSource]:
        # A folder is modified when a distribution is installed in it.
        modified = (
            Path(each).stat().st_mtime_ns if Path(each).exists() else 0 for each in sys.path
        )
        return iter(find(only, metadata.distributions, *sys.path, *modified))

    registry.find_plugins = find_once
