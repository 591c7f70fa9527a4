"""The ``hkv`` storage."""

from __future__ import annotations

from sparring.contracts import (
    Capabilities,
    EvictedRows,
    Keys,
    NativeStorage,
    Rows,
    Scores,
    TableConfig,
)
from sparring.errors import PluginError
from sparring_hkv.options import HkvOptions

__all__ = ["HkvOptions", "HkvStorage"]

_MAX_UINT32 = 2**32 - 1


class HkvStorage(NativeStorage):
    """A table in the memory of this process or of a GPU.

    A bounded table with a policy evicts within buckets of 60 rows, or 128 on a GPU: a new key evicts the
    row with the lowest score in its bucket, which may be the new row itself. If scores are equal, the
    smaller key is evicted. ``set_option("epoch", n)`` starts epoch `n` of an epoch policy.

    Args:
        table: configuration of the table.
        options: bounds and policy; None for the defaults.
        validate: see `sparring.contracts.storage.storage.Storage`.

    Raises:
        InvalidArgumentError: `memory_bytes` is too small for a single row.
        PluginError: the native library cannot be loaded.
        MemoryError: the system has too little memory for the table.
        DeviceError: the GPU cannot be used, with the reason. `DeviceMemoryError` if it has too little
            memory for the table.
    """

    def __init__(
        self, table: TableConfig, options: HkvOptions | None = None, *, validate: bool = True
    ) -> None:
        options = HkvOptions() if options is None else options
        capsule = _open_on_cpu(table, options) if options.device == "cpu" else _open(table, options)
        super().__init__(capsule, table, capabilities=_capabilities_of(options), validate=validate)
        self._epoch = 0
        self.options = options

    def _restore_impl(self, keys: Keys, rows: Rows, scores: Scores) -> EvictedRows:
        if self.capabilities.scores == "none":
            return self._upsert_impl(keys, rows, None)
        self.set_option("scores", "given")
        try:
            evicted = self._upsert_impl(keys, rows, scores)
        finally:
            self.set_option("scores", "policy")
        newest = int(scores.max())
        if self.options.policy in ("epoch_lru", "epoch_lfu"):
            # Both counts of a score only increase, but each epoch counts its calls from 0.
            self._epoch = max(self._epoch, newest >> 32)
            self.set_option("epoch", self._epoch)
            newest = newest & _MAX_UINT32 if newest >> 32 == self._epoch else 0
        if self.options.policy in ("lru", "epoch_lru"):
            self.set_option("calls", newest)
        return evicted

    def set_option(self, name: str, value: object) -> None:
        super().set_option(name, value)
        if name == "epoch":
            self._epoch = int(str(value))


def _open_on_cpu(table: TableConfig, options: HkvOptions) -> object:
    try:
        from sparring_hkv import _native
    except ImportError as error:
        raise PluginError(
            f"storage 'hkv': cannot load its native library ({error}); reinstall it: "
            "pip install --force-reinstall sparring-hkv",
            backend="hkv",
        ) from error
    return _native.create(
        row_bytes=table.row_bytes,
        capacity=options.capacity,
        memory_bytes=options.memory_bytes,
        policy=options.policy,
        hash_seed=options.hash_seed,
    )


def _open(table: TableConfig, options: HkvOptions) -> object:
    from sparring_hkv.devices import open_device

    device = open_device(options.device_kind, options.device_number)
    capsule: object = device.native.create_table(
        device.handle,
        row_bytes=table.row_bytes,
        capacity=options.capacity,
        memory_bytes=options.memory_bytes,
        policy=options.policy,
        hash_seed=options.hash_seed,
        device_memory_bytes=options.device_memory_bytes,
    )
    return capsule


def _capabilities_of(options: HkvOptions) -> Capabilities:
    keeps_scores = options.policy != "none"
    bounded = options.capacity is not None or options.memory_bytes is not None
    scores = {"none": "none", "custom": "given"}.get(options.policy, "policy")
    return Capabilities(
        native=True,
        devices=("cpu",) if options.device == "cpu" else ("cpu", options.device),
        concurrent_reads=True,
        bounded=bounded,
        evicts=bounded and keeps_scores,
        evict=keeps_scores,
        touch=keeps_scores,
        scores=scores,
        eviction_scope="bucket",
    )
