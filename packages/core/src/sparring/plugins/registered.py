"""Records of registered descriptors, rejected plugins and name conflicts; checks of descriptors."""

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
"""Kind → class of its descriptors. The hook of a kind is ``sparring_register_<kind>``."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_\-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class Registration:
    """A descriptor that a plugin has registered."""

    kind: str
    """A key of `KINDS`."""
    name: str
    """Name in configurations; for kernels, the device type."""
    descriptor: Descriptor
    plugin: str
    """Name of the entry point."""
    distribution: str
    """Name of the installed distribution of the plugin, such as ``sparring-hkv``."""
    version: str
    """Version of that distribution."""


@dataclass(frozen=True, slots=True)
class LoadError:
    """A plugin that was rejected."""

    plugin: str
    distribution: str
    version: str
    reason: str
    """The problem and the fix, in one or more sentences."""
    names: tuple[tuple[str, str], ...] = ()
    """(kind, name) of each descriptor of the plugin, as far as known."""
    error: type[PluginError] = PluginError
    """Class of the error that is raised with `reason` when one of `names` is requested."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A name that several distributions register. None of the descriptors is used."""

    kind: str
    name: str
    registered: tuple[Registration, ...]

    @property
    def reason(self) -> str:
        """The problem and the fix, in one sentence."""
        rivals = " and ".join(f"{each.distribution} {each.version}" for each in self.registered)
        return (
            f"{self.kind} {self.name!r} is registered by more than one distribution: {rivals}; "
            "uninstall all but one of them"
        )


def check_descriptors(
    kind: str, wanted: type[Descriptor], returned: object, distribution: str, version: str
) -> list[Descriptor]:
    """Returns the descriptors of a hook if all of them are valid.

    Args:
        kind: a key of `KINDS`.
        wanted: class of the descriptors.
        returned: the value that the hook returned.
        distribution: name of the plugin's distribution.
        version: version of the distribution.

    Raises:
        PluginError: the hook returned another type, or a descriptor is invalid.
        VersionError: a descriptor was written for an incompatible version of the contract.
    """
    hook = f"sparring_register_{kind}"
    if not isinstance(returned, (list, tuple)):
        raise PluginError(
            f"{hook} must return a list of {wanted.__name__}, found {_type_name(returned)}; put the "
            "descriptors into a list"
        )
    for descriptor in returned:
        if not isinstance(descriptor, Descriptor):
            raise PluginError(
                f"{hook} must return a list of {wanted.__name__}, found an item of type "
                f"{_type_name(descriptor)}; return only objects of {wanted.__name__}"
            )
        # Checked first, because other versions may have other fields.
        _check_version(kind, descriptor, distribution, version)
        if not isinstance(descriptor, wanted):
            raise PluginError(
                f"{hook} must return a list of {wanted.__name__}, found an item of type "
                f"{_type_name(descriptor)}; return other descriptors from their own hooks"
            )
        _check_fields(kind, descriptor)
    return list(returned)


def list_names(kind: str, returned: object) -> list[tuple[str, str]]:
    """Returns (kind, name) of each descriptor that the value of a hook contains."""
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
            f"{API_VERSION}, found {wanted!r}; set the version that the plugin was written for"
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
        f"{major}.{minor} of the plugin contract, but sparring {__version__} supports version "
        f"{API_VERSION[0]}.{API_VERSION[1]}; {remedy}",
        found=descriptor.api_version,
        expected=API_VERSION,
        distribution=distribution,
    )


def _check_fields(kind: str, descriptor: Descriptor) -> None:
    name: object = _name_of(descriptor)
    if not isinstance(name, str) or not _NAME.match(name):
        raise PluginError(
            f"{kind}: a name must start with a letter, and contain only letters, digits, '_' and '-', "
            f"at most 64 characters, found {name!r}; rename it"
        )
    options: object = descriptor.options
    if not (isinstance(options, type) and issubclass(options, BaseModel)):
        raise PluginError(
            f"{kind} {name!r}: options must be a class derived from sparring.contracts.Options, "
            f"found {options!r}; pass NoOptions if there are none"
        )
    for field in ("factory", "train", "register"):
        if hasattr(descriptor, field) and not callable(getattr(descriptor, field)):
            raise PluginError(
                f"{kind} {name!r}: {field} must be callable, found "
                f"{_type_name(getattr(descriptor, field))}; pass a function"
            )
    if descriptor.unavailable is not None and not callable(descriptor.unavailable):
        raise PluginError(
            f"{kind} {name!r}: unavailable must be callable or None, found "
            f"{_type_name(descriptor.unavailable)}; pass a function, or omit it"
        )


def _type_name(value: object) -> str:
    return type(value).__name__
