"""Hook specifications: the functions with which a plugin registers its parts.

A distribution declares a plugin module under the entry point group ``sparring``. The module contains
functions with these names, decorated with `hookimpl`. Core registers its own parts with the same
hooks. Importing a plugin module must not import a client library, a framework or CUDA; the factories
of its descriptors do that.

Later versions may add arguments to a hook, but never rename or remove them.
"""

# A hook specification has a signature and a docstring, but no body that returns a value.
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
    """Returns the storage backends of this plugin."""


@hookspec
def sparring_register_collective() -> Sequence[CollectiveDescriptor]:
    """Returns the collective backends of this plugin."""


@hookspec
def sparring_register_rendezvous() -> Sequence[RendezvousDescriptor]:
    """Returns the rendezvous backends of this plugin."""


@hookspec
def sparring_register_kernels() -> Sequence[KernelsDescriptor]:
    """Returns the kernel sets of this plugin, one per device type."""


@hookspec
def sparring_register_update_methods() -> Sequence[UpdateMethodDescriptor]:
    """Returns the update methods of this plugin, which apply gradients to rows."""


@hookspec
def sparring_register_sharding_kinds() -> Sequence[ShardingKindDescriptor]:
    """Returns the sharding kinds of this plugin, which assign the rows of a table to ranks."""


@hookspec
def sparring_register_planners() -> Sequence[PlannerDescriptor]:
    """Returns the planners of this plugin, which choose the sharding of each table of a job."""


@hookspec
def sparring_register_framework() -> Sequence[FrameworkDescriptor]:
    """Returns the framework adapters of this plugin."""


@hookspec
def sparring_register_commands() -> Sequence[CommandDescriptor]:
    """Returns the subcommands of ``sparring`` in this plugin."""
