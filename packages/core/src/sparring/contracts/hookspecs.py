"""The doors through which parts join sparring. Nothing else is in this file.

A distribution names a plugin module under the entry point group ``sparring``; the module holds
functions of these names marked with `hookimpl`. Core's own parts come through the same doors.
Importing a plugin module must import no client library, no framework and no CUDA: the factory of
a descriptor does that.

Arguments may be added to a hook in a later version, never renamed or removed.
"""

# A hook specification is a signature and its description; it has no body to return from.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from sparring.contracts.descriptors import (
    CollectiveDescriptor,
    CommandDescriptor,
    FrameworkDescriptor,
    KernelsDescriptor,
    PlannerDescriptor,
    RendezvousDescriptor,
    ShardingKindDescriptor,
    StorageDescriptor,
    UpdateMethodDescriptor,
)

PROJECT = "sparring"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def sparring_register_storage() -> Sequence[StorageDescriptor]:
    """Storage backends that this plugin offers."""


@hookspec
def sparring_register_collective() -> Sequence[CollectiveDescriptor]:
    """Collective backends that this plugin offers."""


@hookspec
def sparring_register_rendezvous() -> Sequence[RendezvousDescriptor]:
    """Rendezvous backends that this plugin offers."""


@hookspec
def sparring_register_kernels() -> Sequence[KernelsDescriptor]:
    """Sets of key operations that this plugin offers, one for each device type."""


@hookspec
def sparring_register_update_methods() -> Sequence[UpdateMethodDescriptor]:
    """Update methods that this plugin offers: how gradients change rows."""


@hookspec
def sparring_register_sharding_kinds() -> Sequence[ShardingKindDescriptor]:
    """Sharding kinds that this plugin offers: which ranks own the rows of a table."""


@hookspec
def sparring_register_planners() -> Sequence[PlannerDescriptor]:
    """Planners that this plugin offers: which sharding each table of a job has."""


@hookspec
def sparring_register_framework() -> Sequence[FrameworkDescriptor]:
    """Framework adapters that this plugin offers."""


@hookspec
def sparring_register_commands() -> Sequence[CommandDescriptor]:
    """Subcommands of ``sparring`` that this plugin offers."""
