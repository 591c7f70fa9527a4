"""The plugin manager: who offers what, by name.

Core registers its own parts (`sparring.builtin`) through the same hooks as strangers do. One
broken plugin does not disturb the others: it is kept as a `Refusal`, and is an error only when
what it offers is asked for by name. Where two distributions offer one name, neither is used; that
too is an error only when the name is asked for. ``sparring plugins`` lists all of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pluggy

from sparring import builtin, hookspecs
from sparring.descriptors import (
    CollectiveDescriptor,
    CommandDescriptor,
    Descriptor,
    FrameworkDescriptor,
    KernelsDescriptor,
    RendezvousDescriptor,
    StorageDescriptor,
    UpdateMethodDescriptor,
)
from sparring.distributions import PluginSource, find_plugins
from sparring.errors import PluginError
from sparring.names import closest_name
from sparring.offers import KINDS, Conflict, Offer, Refusal, check_offers, names_in

__all__ = ["DISABLE_VARIABLE", "PluginManager", "make_plugin_manager"]

DISABLE_VARIABLE = "SPARRING_PLUGINS_DISABLE"
"""The environment variable that switches plugins off: names with commas, or ``*`` for all."""

_EXTRAS = {
    "collective": {"torch": "torch"},
    "framework": {"tensorflow": "tensorflow", "torch": "torch"},
    "kernels": {"cuda": "hkv"},
    "rendezvous": {"redis": "redis", "torch": "torch"},
    "storage": {"hkv": "hkv", "redis": "redis", "rocksdb": "rocksdb"},
}
"""Kind → name → the extra of ``pip install "sparring[extra]"`` that brings it."""

_Descriptor = TypeVar("_Descriptor", bound=Descriptor)


def make_plugin_manager(*, entry_points: bool = True) -> PluginManager:
    """A manager that knows core's own parts and, with `entry_points`, all installed plugins.

    Each call looks again. Nothing is loaded before the first call.
    """
    from sparring import __version__

    manager = PluginManager()
    manager.load(PluginSource("core", "sparring", __version__, lambda: builtin))
    if entry_points:
        for source in find_plugins():
            manager.load(source)
    return manager


class PluginManager:
    """Finds by name what core and plugins offer."""

    def __init__(self) -> None:
        self._pluggy = pluggy.PluginManager(hookspecs.PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self._offers: dict[tuple[str, str], list[Offer]] = {}
        self._refusals: list[Refusal] = []

    # -- loading ----------------------------------------------------------------

    def load(self, source: PluginSource) -> None:
        """Loads one plugin; if anything is wrong with it, it becomes a `Refusal`."""
        offered: list[tuple[str, str]] = []
        key = f"{source.distribution}:{source.plugin}"
        try:
            if _is_switched_off(source):
                raise PluginError(f"switched off by the environment variable {DISABLE_VARIABLE}")
            offers = self._offers_of(source, key, offered)
        # A plugin may do anything at all while it is imported, `sys.exit` included.
        except (Exception, SystemExit) as error:
            if self._pluggy.has_plugin(key):
                self._pluggy.unregister(name=key)
            self._refusals.append(
                Refusal(
                    source.plugin,
                    source.distribution,
                    source.version,
                    _reason(error),
                    tuple(offered),
                    type(error) if isinstance(error, PluginError) else PluginError,
                )
            )
            return
        for offer in offers:
            self._offers.setdefault((offer.kind, offer.name), []).append(offer)

    def _offers_of(
        self, source: PluginSource, key: str, offered: list[tuple[str, str]]
    ) -> list[Offer]:
        """All that a plugin offers; names go to `offered` as soon as they are known."""
        self._pluggy.register(source.load(), name=key)
        self._pluggy.check_pending()
        others = [plugin for name, plugin in self._pluggy.list_name_plugin() if name != key]
        returned_by_kind: list[tuple[str, object]] = []
        for kind in KINDS:
            hook = self._pluggy.subset_hook_caller(f"sparring_register_{kind}", others)
            for returned in hook():
                offered += names_in(kind, returned)
                returned_by_kind.append((kind, returned))
        repeated = sorted({each for each in offered if offered.count(each) > 1})
        if repeated:
            kind, name = repeated[0]
            raise PluginError(f"it offers {kind} {name!r} more than once")
        return [
            Offer(
                kind,
                names_in(kind, [descriptor])[0][1],
                descriptor,
                source.plugin,
                source.distribution,
                source.version,
            )
            for kind, returned in returned_by_kind
            for descriptor in check_offers(kind, returned, source.distribution, source.version)
        ]

    # -- finding ------------------------------------------------------------------

    def storage(self, name: str) -> StorageDescriptor:
        """The storage backend of that name.

        Raises:
            PluginError: nobody offers it, two distributions do, or its plugin is broken.
            VersionError: its plugin was written for a contract that this core does not speak.
        """
        return self._find("storage", name, StorageDescriptor)

    def collective(self, name: str) -> CollectiveDescriptor:
        """The collective of that name; raises as `storage` does."""
        return self._find("collective", name, CollectiveDescriptor)

    def rendezvous(self, name: str) -> RendezvousDescriptor:
        """The rendezvous of that name; raises as `storage` does."""
        return self._find("rendezvous", name, RendezvousDescriptor)

    def kernels(self, device: str) -> KernelsDescriptor:
        """The key operations for a device type, ``cpu`` or ``cuda``; raises as `storage` does."""
        return self._find("kernels", device, KernelsDescriptor)

    def update_method(self, name: str) -> UpdateMethodDescriptor:
        """The update method of that name; raises as `storage` does."""
        return self._find("update_methods", name, UpdateMethodDescriptor)

    def framework(self, name: str) -> FrameworkDescriptor:
        """The framework adapter of that name; raises as `storage` does."""
        return self._find("framework", name, FrameworkDescriptor)

    def commands(self) -> Sequence[CommandDescriptor]:
        """All subcommands whose names one distribution alone offers."""
        return [
            offers[0].descriptor
            for offers in self._offers.values()
            if len(offers) == 1 and isinstance(offers[0].descriptor, CommandDescriptor)
        ]

    def descriptors(self) -> Sequence[Offer]:
        """All that is offered and usable, by kind and name."""
        return [
            offers[0]
            for kind in KINDS
            for (_, name), offers in sorted(self._offers.items())
            if offers[0].kind == kind and len(offers) == 1
        ]

    def refusals(self) -> Sequence[Refusal]:
        """The plugins that could not be used."""
        return tuple(self._refusals)

    def conflicts(self) -> Sequence[Conflict]:
        """The names that more than one distribution offers."""
        return [
            Conflict(kind, name, tuple(offers))
            for (kind, name), offers in sorted(self._offers.items())
            if len(offers) > 1
        ]

    def _find(self, kind: str, name: str, descriptor_type: type[_Descriptor]) -> _Descriptor:
        offers = self._offers.get((kind, name), [])
        if len(offers) > 1:
            raise PluginError(
                Conflict(kind, name, tuple(offers)).reason,
                kind=kind,
                name=name,
                distributions=tuple(offer.distribution for offer in offers),
            )
        if offers:
            descriptor = offers[0].descriptor
            assert isinstance(descriptor, descriptor_type)
            return descriptor
        raise self._absence(kind, name)

    def _absence(self, kind: str, name: str) -> PluginError:
        """Why nothing of this name can be had."""
        # Where its import failed nobody knows what a plugin would offer; then its name decides.
        refused = [each for each in self._refusals if (kind, name) in each.offered] or [
            each for each in self._refusals if each.plugin == name
        ]
        if refused:
            refusal = refused[0]
            return refusal.error(
                f"{kind} {name!r} cannot be used: plugin {refusal.plugin!r} of "
                f"{refusal.distribution} {refusal.version} was refused: {refusal.reason}",
                kind=kind,
                name=name,
                distribution=refusal.distribution,
            )
        known = sorted(offer.name for offer in self.descriptors() if offer.kind == kind)
        extras = _EXTRAS.get(kind, {})
        meant = closest_name(name, [*known, *extras])
        label = "update method" if kind == "update_methods" else kind
        message = f"{label} {name!r} is {'not installed' if name in extras else 'unknown'}"
        if meant is not None and meant != name:
            message += f"; did you mean {meant!r}?"
        if meant in extras and meant not in known:
            message += f'; install it with: pip install "sparring[{extras[meant]}]"'
        listed = ", ".join(known) or "none"
        return PluginError(
            f"{message} (installed: {listed}); choose one of these, or install a plugin that offers "
            "it; `sparring plugins` lists all",
            kind=kind,
            name=name,
            known=known,
        )


def _is_switched_off(source: PluginSource) -> bool:
    listed = [part.strip() for part in os.environ.get(DISABLE_VARIABLE, "").split(",")]
    is_named = bool({"*", source.plugin, source.distribution} & set(listed))
    return is_named and source.plugin != "core"


def _reason(error: BaseException) -> str:
    if isinstance(error, PluginError):
        return str(error)
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text}"
