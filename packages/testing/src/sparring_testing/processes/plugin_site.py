"""Installs distributions for one test: metadata and modules in a folder on ``sys.path``."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

__all__ = ["Site", "storage_plugin"]


class Site:
    """A folder like ``site-packages`` that is on ``sys.path`` until the test ends."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))

    def install(
        self, distribution: str, source: str, *, version: str = "1.0", plugin: str | None = None
    ) -> None:
        """Installs a distribution whose only module, `plugin`, is a sparring plugin with this source.

        The name of the entry point is the name of the module without the suffix ``_plugin``.
        """
        module = plugin or distribution.replace("-", "_") + "_plugin"
        self.write_metadata(
            distribution, version, f"[sparring]\n{module.removesuffix('_plugin')} = {module}\n"
        )
        (self.folder / f"{module}.py").write_text(dedent(source))
        self._monkeypatch.delitem(sys.modules, module, raising=False)

    def write_metadata(self, distribution: str, version: str, entry_points: str) -> None:
        name = distribution.replace("-", "_")
        folder = self.folder / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        (folder / "entry_points.txt").write_text(entry_points)


def storage_plugin(name: str, *, api_version: tuple[int, int] = (1, 0)) -> str:
    """Returns the source of a plugin that registers the memory storage under another name."""
    return f"""
        from sparring.contracts import StorageDescriptor, hookimpl
        from sparring.storage.memory import MemoryOptions, MemoryStorage

        @hookimpl
        def sparring_register_storage():
            return [
                StorageDescriptor(
                    name={name!r},
                    api_version={api_version!r},
                    summary="A storage for a test.",
                    options=MemoryOptions,
                    factory=lambda table, options: MemoryStorage(table, options),
                )
            ]
    """
