"""Hooks of sparring-cli: inspectors, which show other kinds of files with ``sparring inspect``.

Implement them with ``@hookimpl(optionalhook=True)``, so that the plugin also loads if sparring-cli
is not installed.
"""

# A hook specification is a signature and its description; it has no body to return from.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparring.contracts import Descriptor, hookspec

__all__ = ["InspectorDescriptor", "sparring_register_inspectors"]


@dataclass(frozen=True, kw_only=True)
class InspectorDescriptor(Descriptor):
    """Inspector of a kind of folder, for ``sparring inspect``. `name` is the kind, such as ``served``.

    `recognizes(url)` returns whether `inspect` can show the path or URL; it does not raise if there is
    nothing. `inspect(url, verify, as_json)` prints the facts as text, or as one JSON document with the
    key ``kind``, to standard output. With `verify`, it reads all files, and raises if one is damaged.
    """

    recognizes: Callable[[str], bool]
    inspect: Callable[[str, bool, bool], None]


@hookspec
def sparring_register_inspectors() -> Sequence[InspectorDescriptor]:
    """Returns the inspectors of this plugin, one per kind of folder."""
