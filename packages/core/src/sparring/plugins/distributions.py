"""Discovery of plugins in the entry points of installed distributions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata

from sparring.errors import PluginError

__all__ = ["CORE", "GROUP", "PluginSource", "find_distribution", "find_plugins"]

CORE = "sparring"
"""Name of the distribution of core, which also registers its parts as plugins."""

GROUP = "sparring"
"""Entry point group of plugins."""


@dataclass(frozen=True, slots=True)
class PluginSource:
    """A plugin that was found but not loaded yet."""

    plugin: str
    """Name of the entry point."""
    distribution: str
    version: str
    load: Callable[[], object]
    """Function that imports the plugin; it raises any exception of the import."""


def find_distribution(module: str) -> str | None:
    """Returns name and version of the distribution of a module, such as ``sparring-hkv 0.1.0``.

    Args:
        module: full name of the module; only the part before the first dot is used.
    """
    package = module.partition(".")[0]
    try:
        # Most distributions have the name of their package, and this query is fast.
        return f"{package.replace('_', '-')} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        names = metadata.packages_distributions().get(package)
        return f"{names[0]} {metadata.version(names[0])}" if names else None


def find_plugins(only: str | None = None) -> Iterator[PluginSource]:
    """Yields all plugins on ``sys.path``, ordered by distribution and entry point name.

    The metadata of each distribution is read separately, so that damaged metadata of one distribution
    does not affect the others.

    Args:
        only: name of the only distribution to search; None: all.

    Raises:
        PluginError: the metadata of core is not installed.
    """
    first_of_name: dict[str, metadata.Distribution] = {}
    for distribution in (
        metadata.distributions() if only is None else metadata.distributions(name=only)
    ):
        # Checked first, because reading the headers of a distribution is much slower.
        text = _text_of(distribution)
        if f"[{GROUP}]" in text.replace(" ", ""):
            first_of_name.setdefault(_name_of(distribution), distribution)
    if CORE not in first_of_name:
        raise PluginError(
            f"the metadata of distribution {CORE!r} was not found, so no plugin can be loaded; "
            "install it: pip install --force-reinstall sparring"
        )
    for name in sorted(first_of_name):
        yield from _plugins_of(name, first_of_name[name])


def _plugins_of(name: str, distribution: metadata.Distribution) -> Iterator[PluginSource]:
    version = _version_of(distribution)
    try:
        entry_points = [each for each in distribution.entry_points if each.group == GROUP]
    except Exception as error:
        damage = error

        def report_damage() -> object:
            raise ImportError(
                f"its entry_points.txt cannot be read: {damage}; install {name} again"
            )

        yield PluginSource(name, name, version, report_damage)
        return
    for entry_point in sorted(entry_points, key=lambda each: each.name):
        yield PluginSource(entry_point.name, name, version, entry_point.load)


def _text_of(distribution: metadata.Distribution) -> str:
    try:
        return distribution.read_text("entry_points.txt") or ""
    except (OSError, UnicodeDecodeError):
        return ""


def _name_of(distribution: metadata.Distribution) -> str:
    try:
        name: str | None = distribution.metadata["Name"]
    except (KeyError, TypeError, AttributeError):
        name = None
    return name or "a distribution without a name"


def _version_of(distribution: metadata.Distribution) -> str:
    try:
        version: str | None = distribution.version
    except (KeyError, TypeError, AttributeError):
        version = None
    return version or "of unknown version"
