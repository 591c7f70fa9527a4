"""Injects faults into the calls with which snapshots access the local disk.

    with faulty_disk(hook) as points:
        container.save(url)

`hook` is called with the name of each fault point, before the call that the name describes. It may
raise OSError, kill the process, or count calls. The production code contains no hooks: the module that
accesses the disk gets a different `os` while the context is active.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

from sparring.snapshot.place import local as local_place

__all__ = ["Hook", "faulty_disk"]

Hook = Callable[[str], None]

_KINDS = ("rows", "erased", "state", "part", "manifest")
_PATH_FUNCTIONS = ("mkdir", "rmdir", "unlink", "scandir")


@contextmanager
def faulty_disk(hook: Hook) -> Iterator[None]:
    """Calls `hook` at each fault point of snapshots on the local disk, in this process.

    The name of a fault point consists of a function of `os` and its object: ``open rows``,
    ``write rows``, ``half-written rows`` (between two halves of a write), ``fsync rows``,
    ``rename manifest``, ``rename folder`` (the commit), ``renamed folder`` (after the commit),
    ``fsync folder``, ``preadv rows``, ….

    Args:
        hook: called with the name, on the thread that makes the call.
    """
    module: Any = local_place
    before = module.os
    module.os = _FaultyOs(hook)
    try:
        yield
    finally:
        module.os = before


class _FaultyOs:
    """Wraps `os` and calls a hook before each function that accesses the disk."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._names: dict[int, str] = {}
        self._halved: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in _PATH_FUNCTIONS:
            return function

        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            self._hook(f"{name} {self._kind(path)}")
            return function(path, *arguments, **options)

        return call

    def open(self, path: Any, *arguments: Any, **options: Any) -> int:
        kind = self._kind(path)
        self._hook(f"open {kind}")
        descriptor = os.open(path, *arguments, **options)
        self._names[descriptor] = kind
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        kind = self._names.get(descriptor, "file")
        if descriptor in self._halved:
            self._halved.discard(descriptor)
            self._hook(f"half-written {kind}")
        else:
            self._hook(f"write {kind}")
            if len(data) > 1:
                self._halved.add(descriptor)
                data = data[: len(data) // 2]
        return os.write(descriptor, data)

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        self._hook(f"pwrite {self._names.get(descriptor, 'file')}")
        return os.pwrite(descriptor, data, offset)

    def preadv(self, descriptor: int, buffers: Any, offset: int) -> int:
        self._hook(f"preadv {self._names.get(descriptor, 'file')}")
        return os.preadv(descriptor, buffers, offset)

    def fsync(self, descriptor: int) -> None:
        self._hook(f"fsync {self._names.get(descriptor, 'file')}")
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        self._names.pop(descriptor, None)
        self._halved.discard(descriptor)
        os.close(descriptor)

    def rename(self, source: Any, target: Any, **options: Any) -> None:
        kind = self._kind(target)
        self._hook(f"rename {kind}")
        os.rename(source, target, **options)
        self._hook(f"renamed {kind}")

    def _kind(self, path: Any) -> str:
        if isinstance(path, int):
            return self._names.get(path, "folder")
        name = PurePath(path).name
        kind = next((each for each in _KINDS if name.startswith(each)), "")
        return kind or ("staging" if name.startswith(".") else "folder")
