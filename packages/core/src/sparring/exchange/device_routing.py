"""Keys on a device, grouped by the rank that owns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.exchange.routing import Chunk, Piece, chunks_of
from sparring.kernel_set import DeviceArray, KernelSet

__all__ = ["DeviceRouted", "HopTurn", "hop_turns", "route_on_device"]

Counts = npt.NDArray[np.int64]


@dataclass(slots=True)
class DeviceRouted:
    """Keys of several tables in the order of their owners."""

    orders: list[DeviceArray]
    """Of each table ``(u,)`` int64: where its keys stand that were sorted by owner."""
    offsets: list[list[int]]
    """Of each table, world_size + 1 numbers: where the keys of each owner begin."""
    keys: list[DeviceArray]
    """Of each table ``(u,)``: its keys in the order of their owners."""
    counts: Counts
    """``(world_size, tables)``: keys of each table at each owner."""

    def slice_of(self, owner: int, piece: Piece) -> slice:
        """Where the keys of a piece lie among the sorted ones of their table."""
        first = self.offsets[piece.table][owner]
        return slice(first + piece.begin, first + piece.end)


def route_on_device(
    kernels: KernelSet, keys: Sequence[DeviceArray], owners: DeviceArray, world_size: int
) -> DeviceRouted:
    """Groups the keys of each table by owner. Waits for the device once a table, for the counts."""
    routes = [kernels.route(each, owners, world_size) for each in keys]
    take = kernels.arrays.take
    grouped = [take(each, route.order) for each, route in zip(keys, routes, strict=True)]
    offsets = [np.asarray(kernels.arrays.to_host(route.offsets)) for route in routes]
    counts = np.stack([np.diff(each) for each in offsets], axis=1).astype(np.int64)
    return DeviceRouted(
        [route.order for route in routes], [each.tolist() for each in offsets], grouped, counts
    )


@dataclass(frozen=True, slots=True)
class HopTurn:
    """What a rank does at one turn of a hop; either side may have nothing to do."""

    hop: int
    number: int
    outgoing: Chunk | None
    """What goes to the peer that this rank serves."""
    incoming: Chunk | None
    """What comes from the peer that this rank asks."""

    @property
    def what(self) -> str:
        """For traces."""
        return f"hop {self.hop} chunk {self.number}"


def hop_turns(
    outgoing: Sequence[Counts], incoming: Sequence[Counts], chunk_rows: int
) -> list[HopTurn]:
    """All turns in order: hop after hop, in each as many as the longer side has chunks.

    Both ends of a message have the same hop and number for it, and all ranks go through theirs in
    one order. So of all turns that are not through, the first one finds both its ends at it.

    Args:
        outgoing: of hop 1, 2, …: ``(tables,)`` rows that go out.
        incoming: the same of those that come in.
        chunk_rows: the most rows in a chunk.
    """
    turns = []
    for hop, (out, into) in enumerate(zip(outgoing, incoming, strict=True), start=1):
        going, coming = list(chunks_of(out, chunk_rows)), list(chunks_of(into, chunk_rows))
        for number in range(max(len(going), len(coming))):
            turns.append(
                HopTurn(
                    hop,
                    number,
                    going[number] if number < len(going) else None,
                    coming[number] if number < len(coming) else None,
                )
            )
    return turns
