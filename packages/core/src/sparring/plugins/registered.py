"""Registered descriptors, plugins that failed to load, name conflicts; checks of descriptors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from sparring._version import __version__
from sparring.contracts.descriptors import (
    API_VERSION,
    CollectiveDescriptor,
    CommandDescriptor,
    Descriptor,
    FrameworkDescriptor,
    KernelsDescriptor,
    PlannerDescriptor,
    RendezvousDescriptor,
    ShardingKindDescriptor,
    StorageDescriptor,
    UpdateMethodDescriptor,
)
from sparring.errors import PluginError, VersionError

__all__ = ["KINDS", "Conflict", "Registration", "LoadError", "check_descriptors", "list_names"]

KINDS: Mapping[str, type[Descriptor]] = {
    "storage": StorageDescriptor,
    "collective": CollectiveDescriptor,
    "rendezvous": RendezvousDescriptor,
    "kernels": KernelsDescriptor,
    "update_methods": UpdateMethodDescriptor,
    "sharding_kinds": ShardingKindDescriptor,
    "planners": PlannerDescriptor,
    "framework": FrameworkDescriptor,
    "commands": CommandDescriptor,
}
"""Kind → its descriptor. The hook of a kind is ``sparring_register_<kind>``."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_\-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class Registration:
    """A descriptor that a plugin registers."""

    kind: str
    """A key of `KINDS`."""
    name: str
    """The name that users give; for kernels, the device."""
    descriptor: Descriptor
    plugin: str
    """The name of the entry point."""
    distribution: str
    """The installed distribution that brought it, ``sparring-hkv``."""
    version: str
    """The version of that distribution."""


@dataclass(frozen=True, slots=True)
class LoadError:
    """The record of a plugin that was rejected."""

    plugin: str
    distribution: str
    version: str
    reason: str
    """The problem and the remedy, in one or more sentences."""
    names: tuple[tuple[str, str], ...] = ()
    """(kind, name) of each descriptor that it would have registered, as far as that is known."""
    error: type[PluginError] = PluginError
    """Raised with `reason` when one of `names` is asked for."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A name that several distributions register; none of them is used."""

    kind: str
    name: str
    registered: tuple[Registration, ...]

    @property
    def reason(self) -> str:
        rivals = " and ".join(f"{each.distribution} {each.version}" for each in self.registered)
        return (
            f"{self.kind} {self.name!r} is registered by more than one distribution: {rivals}; "
            "uninstall all but one of them"
        )


def check_descriptors(
    kind: str, wanted: type[Descriptor], returned: object, distribution: str, version: str
) -> list[Descriptor]:
    """Returns the descriptors of a hook if all of them can be used.

    Raises:
        PluginError: the hook returned something else, or a descriptor is wrong.
        VersionError: a descriptor was written against a contract that this core does not speak.
    """
    hook = f"sparring_register_{kind}"
    if not isinstance(returned, (list, tuple)):
        raise PluginError(
            f"{hook} must return a list of {wanted.__name__}, found {_type_name(returned)}"
        )
    for descriptor in returned:
        if not isinstance(descriptor, Descriptor):
            raise PluginError(
                f"{hook} must return a list of {wanted.__name__}, found an item of type "
                f"{_type_name(descriptor)}"
            )
        # The version goes first: of another version, the rest may well look different.
        _check_version(kind, descriptor, distribution, version)
        if not isinstance(descriptor, wanted):
            raise PluginError(
                f"{hook} must return a list of {wanted.__name__}, found an item of type "
                f"{_type_name(descriptor)}"
            )
        _check_fields(kind, descriptor)
    return list(returned)


def list_names(kind: str, returned: object) -> list[tuple[str, str]]:
    """(kind, name) of each descriptor that can be recognised in the value of a hook."""
    if not isinstance(returned, (list, tuple)):
        return []
    names = [_name_of(each) for each in returned if isinstance(each, Descriptor)]
    return [(kind, name) for name in names if isinstance(name, str)]


def _name_of(descriptor: Descriptor) -> object:
    if isinstance(descriptor, KernelsDescriptor):
        return descriptor.device
    return descriptor.name


def _check_version(kind: str, descriptor: Descriptor, distribution: str, version: str) -> None:
    wanted: object = descriptor.api_version
    is_pair = (
        isinstance(wanted, tuple)
        and len(wanted) == 2
        and all(isinstance(number, int) and number >= 0 for number in wanted)
    )
    if not is_pair:
        raise PluginError(
            f"{kind} {descriptor.name!r}: api_version must be a pair of whole numbers such as "
            f"{API_VERSION}, found {wanted!r}"
        )
    major, minor = descriptor.api_version
    if major == API_VERSION[0] and minor <= API_VERSION[1]:
        return
    if (major, minor) > API_VERSION:
        remedy = "upgrade sparring, or install an older " + distribution
    else:
        remedy = f"upgrade {distribution}, or install an older sparring"
    raise VersionError(
        f"{kind} {descriptor.name!r} of {distribution} {version} was written for version "
        f"{major}.{minor} of the plugin contract, but sparring {__version__} speaks version "
        f"{API_VERSION[0]}.{API_VERSION[1]}; {remedy}",
        found=descriptor.api_version,
        expected=API_VERSION,
        distribution=distribution,
    )


def _check_fields(kind: str, descriptor: Descriptor) -> None:
    name: object = _name_of(descriptor)
    if not isinstance(name, str) or not _NAME.match(name):
        raise PluginError(
            f"{kind}: a name starts with a letter and holds only letters, digits, '_' and '-', "
            f"at most 64 of them; found {name!r}"
        )
    options: object = descriptor.options
    if not (isinstance(options, type) and issubclass(options, BaseModel)):
        raise PluginError(
            f"{kind} {name!r}: options must be a class derived from sparring.contracts.Options, "
            f"found {options!r}"
        )
    for field in ("factory", "train", "register"):
        if hasattr(descriptor, field) and not callable(getattr(descriptor, field)):
            raise PluginError(
                f"{kind} {name!r}: {field} must be callable, found "
                f"{_type_name(getattr(descriptor, field))}"
            )
    if descriptor.unavailable is not None and not callable(descriptor.unavailable):
        raise PluginError(
            f"{kind} {name!r}: unavailable must be callable or None, found "
            f"{_type_name(descriptor.unavailable)}"
        )


def _type_name(value: object) -> str:
    return type(value).__name__
