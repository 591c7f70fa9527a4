"""Hooks of sparring-cli: inspectors, which show other kinds of files with ``sparring inspect``, and
checks of jobs for ``sparring doctor``.

Implement them with ``@hookimpl(optionalhook=True)``, so that the plugin also loads if sparring-cli
is not installed.
"""

# A hook specification is a signature and its description; it has no body to return from.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sparring.contracts import Descriptor, hookspec

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = [
    "InspectorDescriptor",
    "JobCheck",
    "JobCheckerDescriptor",
    "JobRequest",
    "sparring_register_inspectors",
    "sparring_register_job_checkers",
]


@dataclass(frozen=True, kw_only=True)
class InspectorDescriptor(Descriptor):
    """Inspector of a kind of folder, for ``sparring inspect``. `name` is the kind, such as ``served``.

    `recognizes(url)` returns whether `inspect` can show the path or URL; it does not raise if there is
    nothing. `inspect(url, verify, as_json)` prints the facts as text, or as one JSON document with the
    key ``kind``, to standard output. With `verify`, it reads all files, and raises if one is damaged.
    """

    recognizes: Callable[[str], bool]
    inspect: Callable[[str, bool, bool], None]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job that is checked before it starts."""

    config: str
    """Path of its configuration."""
    overrides: Sequence[str] = ()
    num_ranks: int = 1
    """Number of ranks on this machine."""
    world_size: int = 1
    """Number of ranks on all machines."""
    num_rows: int | None = None
    """Expected number of rows of all tables; None: unknown."""


@dataclass(frozen=True, slots=True)
class JobCheck:
    """Result of one check."""

    operation: str
    """What was tried, such as ``listen on metrics.port``."""
    status: Literal["ok", "failed", "skipped"]
    found: str
    expected: str = ""
    """Only if it failed, like `fix`."""
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class JobCheckerDescriptor(Descriptor):
    """Checks of jobs of one program, whose name is `name`, for ``sparring doctor --job``.

    `check(request, plugin_manager)` yields a `JobCheck` for each check of a `JobRequest`. It changes
    nothing permanently.
    """

    check: Callable[[JobRequest, PluginManager], Iterator[JobCheck]]


@hookspec
def sparring_register_inspectors() -> Sequence[InspectorDescriptor]:
    """Returns the inspectors of this plugin, one per kind of folder."""


@hookspec
def sparring_register_job_checkers() -> Sequence[JobCheckerDescriptor]:
    """Returns the checks of jobs of this plugin, one per program."""
