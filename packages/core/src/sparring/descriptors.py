"""What a plugin hands to core: one descriptor for each thing that it offers.

`api_version` is the version of the contract that the plugin was written against, a pair of
``(major, minor)``. It is not the version of any package: see ``docs/reference/versions.md``.
Core refuses another major version, and a larger minor version than its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    import typer

    from sparring.collective import Collective
    from sparring.config import RunConfig
    from sparring.kernel_set import ArraySource, KernelSet
    from sparring.plugins import PluginManager
    from sparring.rendezvous import Membership, Rendezvous, Shard
    from sparring.storage import Storage
    from sparring.table import TableConfig
    from sparring.training import Progress, TrainResult
    from sparring.updates import UpdateMethod

__all__ = [
    "API_VERSION",
    "ByteCount",
    "CollectiveDescriptor",
    "CommandDescriptor",
    "Descriptor",
    "FrameworkDescriptor",
    "InnerStorage",
    "KernelsDescriptor",
    "NoOptions",
    "OptionProblem",
    "Options",
    "RendezvousDescriptor",
    "StorageDescriptor",
    "UpdateMethodDescriptor",
    "WholeNumber",
]

API_VERSION: tuple[int, int] = (1, 0)
"""The version of the plugin contracts that this core speaks."""


class Options(BaseModel):
    """The base of options models: unknown options are refused, defaults are checked too."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )


def _plain_int(value: object) -> object:
    return int(value) if isinstance(value, np.integer) else value


WholeNumber = Annotated[int, Field(strict=True), BeforeValidator(_plain_int)]
"""For options that are counts: an integer of Python or NumPy; no text, no float, no True."""


_UNITS = {"": 1, "b": 1} | {
    f"{letter}{binary}b": (1024 if binary else 1000) ** power
    for power, letter in enumerate("kmgt", 1)
    for binary in ("i", "")
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*\Z")


def _as_bytes(value: object) -> object:
    """``"512 MiB"`` → bytes; numbers are left alone."""
    if not isinstance(value, str):
        return _plain_int(value)
    matched = _SIZE.match(value)
    if matched is None or matched[2].lower() not in _UNITS:
        raise PydanticCustomError(
            "byte_count", "must be a number of bytes, as 536870912, or one with a unit, as 512 MiB"
        )
    count = Decimal(matched[1]) * _UNITS[matched[2].lower()]
    return int(min(count, Decimal(2**63)))  # which is too many


ByteCount = Annotated[int, Field(strict=True, le=2**63 - 1), BeforeValidator(_as_bytes)]
"""For options that are bytes: a whole number, or text with a unit: KB, MB, GB, TB, KiB, MiB, GiB,
TiB. Give ``ge`` with the default."""


class NoOptions(Options):
    """For parts that take no options."""


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """What all descriptors have.

    Args:
        name: what users write in configs; letters, digits, ``_`` and ``-``.
        api_version: the contract version that the plugin was written against.
        summary: one sentence for ``sparring plugins``.
        options: the pydantic model of the options that users may give.
        unavailable: returns why this part cannot run here (no driver, no library), or None.
            Called on demand; it may import the client library.
    """

    name: str
    api_version: tuple[int, int]
    summary: str = ""
    options: type[Options] = NoOptions
    unavailable: Callable[[], str | None] | None = None


@dataclass(frozen=True, slots=True)
class InnerStorage:
    """A storage that the options of another one name."""

    path: tuple[str | int, ...]
    """Where in the options: below it are ``backend`` and ``options``."""
    backend: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OptionProblem:
    """What is wrong with options, beyond what their model knows."""

    path: tuple[str | int, ...]
    """Where in the options."""
    message: str
    """What was found, and what to do."""


@dataclass(frozen=True, kw_only=True)
class StorageDescriptor(Descriptor):
    """A storage backend. `factory(table, options)` opens one shard of one table.

    `shard_factory(table, options, shard)` is for backends whose storages of several ranks may lie
    in one place, as on a server or in a folder: it is called in a world of more than one rank, and
    opens the part that the rank keeps. Left out, ranks share nothing and `factory` opens any part.

    A storage that is made of others says which its options name, by `inner`; its factory is then
    `factory(table, options, plugin_manager, shard)`, to open them with; the shard is None in a
    world of one. Backends and options of inner storages are checked with those of the outer one;
    `check` finds what else is wrong.

    `found(table, options)` is for backends whose rows outlive the process: it tells of which table
    the rows are that lie where the options say, as `TableConfig.labelled` makes it of the row label
    that was recorded; None where there are none. It makes nothing. By it rows are read before
    an optimizer is known, as for an evaluation; left out, they are read from the first step on.
    """

    factory: Callable[..., Storage]
    shard_factory: Callable[[TableConfig, Any, Shard], Storage] | None = None
    found: Callable[[TableConfig, Any], TableConfig | None] | None = None
    inner: Callable[[Any], Sequence[InnerStorage]] | None = None
    check: Callable[[Any, PluginManager], Sequence[OptionProblem]] | None = None


@dataclass(frozen=True, kw_only=True)
class CollectiveDescriptor(Descriptor):
    """A collective backend.

    `factory(membership, options, deadline_seconds)` joins the group of all ranks.
    """

    factory: Callable[[Membership, Any, float], Collective]


@dataclass(frozen=True, kw_only=True)
class RendezvousDescriptor(Descriptor):
    """A rendezvous backend. `factory(options)` reads the environment it stands for."""

    factory: Callable[[Any], Rendezvous]


@dataclass(frozen=True, kw_only=True)
class KernelsDescriptor(Descriptor):
    """The key operations of one device type.

    `factory(arrays)` opens the set for one device of it: `arrays` says which, how results are made
    and which stream work goes to. `num_devices()` says how many of them this process sees, 0 where
    none can be used; None: nobody knows.
    """

    device: str
    factory: Callable[[ArraySource], KernelSet]
    num_devices: Callable[[], int] | None = None


@dataclass(frozen=True, kw_only=True)
class UpdateMethodDescriptor(Descriptor):
    """An update method. `options` are its hyper-parameters; `factory()` makes it."""

    factory: Callable[[], UpdateMethod]


@dataclass(frozen=True, kw_only=True)
class FrameworkDescriptor(Descriptor):
    """A framework adapter.

    `train(config, plugin_manager, progress)` runs one training from reading the data to the last
    evaluation, and writes the report that the configuration asks for. Backends come from the
    plugin manager; of its progress it tells `progress`, and prints nothing itself.
    """

    train: Callable[[RunConfig, PluginManager, Progress], TrainResult]


@dataclass(frozen=True, kw_only=True)
class CommandDescriptor(Descriptor):
    """A subcommand of ``sparring``.

    `register(app)` adds the command `name`, or a group of commands of that name, to the typer
    application. A command finds the `sparring.cli.CommandContext` of this call in
    ``typer.Context.obj``.
    """

    register: Callable[[typer.Typer], None]
