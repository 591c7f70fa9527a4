"""The plugin manager, which finds registered descriptors by name.

Core registers its parts with entry points and hooks, like other distributions. A broken plugin does not
affect the others: it is rejected with a `LoadError`, and an error is raised only when one of its names
is requested. If two distributions register the same name, neither is used, and an error is raised when
the name is requested. ``sparring plugins`` lists all plugins, errors and conflicts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TypeVar

import pluggy

from sparring.contracts import hookspecs
from sparring.contracts.descriptors import (
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
from sparring.errors import PluginError
from sparring.plugins.distributions import CORE, PluginSource, find_plugins
from sparring.plugins.registered import (
    KINDS,
    Conflict,
    LoadError,
    Registration,
    check_descriptors,
    list_names,
)
from sparring.runtime.suggestions import find_closest_name

__all__ = ["DISABLE_VARIABLE", "PluginManager", "make_plugin_manager"]

DISABLE_VARIABLE = "SPARRING_PLUGINS_DISABLE"
"""Environment variable that disables plugins: names separated by commas, or ``*`` for all."""

EXTRAS = {
    "collective": {"mpi": "mpi", "nccl": "nccl", "shm": "shm", "torch": "torch"},
    "framework": {"jax": "jax", "tensorflow": "tensorflow", "torch": "torch"},
    "kernels": {"cuda": "hkv"},
    "planners": {"auto": "plan"},
    "rendezvous": {"redis": "redis", "torch": "torch"},
    "storage": {
        "hkv": "hkv",
        "redis": "redis",
        "remote": "serve",
        "rocksdb": "rocksdb",
        "tiered": "tiered",
    },
}
"""Kind → name → extra of ``pip install "sparring[extra]"`` that installs it."""

_Descriptor = TypeVar("_Descriptor", bound=Descriptor)


def make_plugin_manager(
    *, entry_points: bool = True, kinds: Iterable[str] = tuple(KINDS)
) -> PluginManager:
    """Creates a manager with the parts of core and all installed plugins.

    Each call searches again. Plugins are not loaded before the first call.

    Args:
        entry_points: whether to search the installed distributions; if False, only core is loaded.
        kinds: kinds of descriptors to load, such as ``commands``; by default all.

    Examples:
        >>> from sparring import make_plugin_manager
        >>> make_plugin_manager().sharding_kind("row_wise").name
        'row_wise'
    """
    manager = PluginManager(kinds)
    for source in find_plugins(None if entry_points else CORE):
        manager.load(source)
    return manager


class PluginManager:
    """Finds descriptors of core and plugins by name.

    Args:
        kinds: kinds of descriptors to load; by default all.

    Examples:
        >>> from sparring import make_plugin_manager
        >>> make_plugin_manager(entry_points=False).storage("memory").name
        'memory'
    """

    def __init__(self, kinds: Iterable[str] = tuple(KINDS)) -> None:
        self._pluggy = pluggy.PluginManager(hookspecs.PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self._kinds = {kind: KINDS[kind] for kind in kinds}
        self._sources: dict[str, PluginSource] = {}
        self._registered: dict[tuple[str, str], list[Registration]] = {}
        self._load_errors: list[LoadError] = []
        self._extends = threading.RLock()

    # -- loading ----------------------------------------------------------------

    def load(self, source: PluginSource) -> None:
        """Loads one plugin; a broken one is rejected with a `LoadError`.

        Args:
            source: the plugin and its distribution, as `find_plugins` returns them.
        """
        names: list[tuple[str, str]] = []
        key = f"{source.distribution}:{source.plugin}"
        try:
            if _is_disabled(source):
                raise PluginError(f"disabled by the environment variable {DISABLE_VARIABLE}")
            self._pluggy.register(source.load(), name=key)
            self._pluggy.check_pending()
            registered = self._descriptors_of(source, key, self._kinds, names)
        # Importing a plugin may raise any exception, including the SystemExit of `sys.exit`.
        except (Exception, SystemExit) as error:
            self._reject(source, key, error, names)
            return
        self._sources[key] = source
        self._take(registered)

    def extend(self, specs: ModuleType, kinds: Mapping[str, type[Descriptor]]) -> None:
        """Adds hooks that another package declares. A second call does nothing. Threads may call it at
        once.

        Args:
            specs: module with the hook specifications, named ``sparring_register_<kind>``.
            kinds: kind → class of the descriptors that its hook returns.
        """
        # Another thread must not find the kinds before their descriptors.
        with self._extends:
            if kinds.keys() <= self._kinds.keys():
                return
            self._pluggy.add_hookspecs(specs)
            self._kinds.update(kinds)
            for key, source in list(self._sources.items()):
                names: list[tuple[str, str]] = []
                try:
                    self._take(self._descriptors_of(source, key, kinds, names))
                except (Exception, SystemExit) as error:
                    del self._sources[key]
                    self._reject(source, key, error, [*self._withdraw(source), *names])

    def _withdraw(self, source: PluginSource) -> Sequence[tuple[str, str]]:
        """Removes all descriptors of a plugin, and returns their kinds and names."""
        withdrawn = [
            (place, each)
            for place, registered in self._registered.items()
            for each in registered
            if (each.plugin, each.distribution) == (source.plugin, source.distribution)
        ]
        for place, each in withdrawn:
            self._registered[place].remove(each)
        return [place for place, _ in withdrawn]

    def _take(self, registered: Sequence[Registration]) -> None:
        for each in registered:
            self._registered.setdefault((each.kind, each.name), []).append(each)

    def _reject(
        self,
        source: PluginSource,
        key: str,
        error: BaseException,
        names: Sequence[tuple[str, str]],
    ) -> None:
        if self._pluggy.has_plugin(key):
            self._pluggy.unregister(name=key)
        self._load_errors.append(
            LoadError(
                source.plugin,
                source.distribution,
                source.version,
                _reason(error),
                tuple(names),
                type(error) if isinstance(error, PluginError) else PluginError,
            )
        )

    def _descriptors_of(
        self,
        source: PluginSource,
        key: str,
        kinds: Iterable[str],
        names: list[tuple[str, str]],
    ) -> list[Registration]:
        """Returns the descriptors of `kinds` that a plugin registers, and appends names to `names`.

        Names are appended before the checks, so that they are also known if a check fails.
        """
        others = [plugin for name, plugin in self._pluggy.list_name_plugin() if name != key]
        returned_by_kind: list[tuple[str, object]] = []
        for kind in kinds:
            hook = self._pluggy.subset_hook_caller(f"sparring_register_{kind}", others)
            for returned in hook():
                names += list_names(kind, returned)
                returned_by_kind.append((kind, returned))
        repeated = sorted({each for each in names if names.count(each) > 1})
        if repeated:
            kind, name = repeated[0]
            raise PluginError(f"it registers {kind} {name!r} more than once; remove one of them")
        return [
            Registration(
                kind,
                list_names(kind, [descriptor])[0][1],
                descriptor,
                source.plugin,
                source.distribution,
                source.version,
            )
            for kind, returned in returned_by_kind
            for descriptor in check_descriptors(
                kind, self._kinds[kind], returned, source.distribution, source.version
            )
        ]

    # -- finding ------------------------------------------------------------------

    def storage(self, name: str) -> StorageDescriptor:
        """Returns the storage backend with this name.

        Args:
            name: name of the backend, such as ``hkv``.

        Raises:
            PluginError: no plugin registers the name, two distributions do, or its plugin is broken.
            VersionError: its plugin was written for an incompatible version of the contract.
        """
        return self.find("storage", name, StorageDescriptor)

    def collective(self, name: str) -> CollectiveDescriptor:
        """Returns the collective with this name. Raises like `storage`.

        Args:
            name: name of the backend, such as ``local``.
        """
        return self.find("collective", name, CollectiveDescriptor)

    def rendezvous(self, name: str) -> RendezvousDescriptor:
        """Returns the rendezvous with this name. Raises like `storage`.

        Args:
            name: name of the backend, such as ``environment``.
        """
        return self.find("rendezvous", name, RendezvousDescriptor)

    def kernels(self, device: str) -> KernelsDescriptor:
        """Returns the kernels of a device type. Raises like `storage`.

        Args:
            device: ``cpu`` or ``cuda``.
        """
        return self.find("kernels", device, KernelsDescriptor)

    def update_method(self, name: str) -> UpdateMethodDescriptor:
        """Returns the update method with this name. Raises like `storage`.

        Args:
            name: name of the method, such as ``adagrad``.
        """
        return self.find("update_methods", name, UpdateMethodDescriptor)

    def sharding_kind(self, name: str) -> ShardingKindDescriptor:
        """Returns the sharding kind with this name. Raises like `storage`.

        Args:
            name: name of the kind, such as ``row_wise``.
        """
        return self.find("sharding_kinds", name, ShardingKindDescriptor)

    def planner(self) -> PlannerDescriptor:
        """Returns the planner named ``auto``. Raises like `storage`."""
        return self.find("planners", "auto", PlannerDescriptor)

    def framework(self, name: str) -> FrameworkDescriptor:
        """Returns the framework adapter with this name. Raises like `storage`.

        Args:
            name: ``torch``, ``jax`` or ``tensorflow``, or the name of a plugin's adapter.
        """
        return self.find("framework", name, FrameworkDescriptor)

    def commands(self) -> Sequence[CommandDescriptor]:
        """Returns all subcommands that are registered by exactly one distribution."""
        return [
            registered[0].descriptor
            for registered in self._registered.values()
            if len(registered) == 1 and isinstance(registered[0].descriptor, CommandDescriptor)
        ]

    def descriptors(self) -> Sequence[Registration]:
        """Returns all usable descriptors, ordered by kind and name."""
        return [
            registered[0]
            for kind in self._kinds
            for (_, name), registered in sorted(self._registered.items())
            if len(registered) == 1 and registered[0].kind == kind
        ]

    def load_errors(self) -> Sequence[LoadError]:
        """Returns the rejected plugins."""
        return tuple(self._load_errors)

    def conflicts(self) -> Sequence[Conflict]:
        """Returns the names that more than one distribution registers."""
        return [
            Conflict(kind, name, tuple(registered))
            for (kind, name), registered in sorted(self._registered.items())
            if len(registered) > 1
        ]

    def find(self, kind: str, name: str, descriptor_type: type[_Descriptor]) -> _Descriptor:
        """Returns the descriptor of any kind, including kinds added by `extend`.

        Args:
            kind: the kind.
            name: the name.
            descriptor_type: class of the descriptor.

        Raises:
            PluginError, VersionError: see `storage`.
        """
        registered = self._registered.get((kind, name), [])
        if len(registered) > 1:
            raise PluginError(
                Conflict(kind, name, tuple(registered)).reason,
                kind=kind,
                name=name,
                distributions=tuple(each.distribution for each in registered),
            )
        if registered:
            descriptor = registered[0].descriptor
            assert isinstance(descriptor, descriptor_type)
            return descriptor
        raise self._absence(kind, name)

    def _absence(self, kind: str, name: str) -> PluginError:
        """Creates the error with the reason why there is no descriptor with this name."""
        # If the import of a plugin failed, its descriptors are unknown, so the plugin's name is used.
        rejected = [each for each in self._load_errors if (kind, name) in each.names] or [
            each for each in self._load_errors if each.plugin == name
        ]
        if rejected:
            failed = rejected[0]
            return failed.error(
                f"{kind} {name!r} cannot be used: plugin {failed.plugin!r} of "
                f"{failed.distribution} {failed.version} was rejected: {failed.reason}",
                kind=kind,
                name=name,
                distribution=failed.distribution,
            )
        known = sorted(each.name for each in self.descriptors() if each.kind == kind)
        extras = EXTRAS.get(kind, {})
        meant = find_closest_name(name, [*known, *extras])
        label = kind if kind == "kernels" else kind.replace("_", " ").removesuffix("s")
        message = f"{label} {name!r} is {'not installed' if name in extras else 'unknown'}"
        if meant is not None and meant != name:
            message += f"; did you mean {meant!r}?"
        if meant in extras and meant not in known:
            message += f'; install it with: pip install "sparring[{extras[meant]}]"'
        listed = ", ".join(known) or "none"
        return PluginError(
            f"{message} (installed: {listed}); choose one of these, or install a plugin that registers "
            "it; `sparring plugins` lists all",
            kind=kind,
            name=name,
            known=known,
        )


def _is_disabled(source: PluginSource) -> bool:
    listed = [part.strip() for part in os.environ.get(DISABLE_VARIABLE, "").split(",")]
    is_named = bool({"*", source.plugin, source.distribution} & set(listed))
    return is_named and source.distribution != CORE


def _reason(error: BaseException) -> str:
    if isinstance(error, PluginError):
        return str(error)
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text}"
