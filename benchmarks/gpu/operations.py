"""Key operations on a GPU, compared with PyTorch's."""

from __future__ import annotations

import torch

from benchmarks.gpu.keys import zipf_ids
from benchmarks.gpu.machine import Bar, Machine
from benchmarks.measuring import Figure

__all__ = ["measure"]

_NUM_IDS, _NUM_KEYS, _NUM_BATCHES = 1 << 20, 10_000_000, 8


def measure(machine: Machine) -> list[Figure]:
    """Deduplicates a million ids, Zipf 1.05 over ten million keys; `torch.unique` is the reference."""
    num_ids = machine.sized(_NUM_IDS)
    batches = zipf_ids(machine, _NUM_BATCHES, num_ids, machine.sized(_NUM_KEYS))
    kernels = machine.kernels()

    def ours(turn: int) -> object:
        return kernels.dedup(batches[turn % _NUM_BATCHES])

    def theirs(turn: int) -> object:
        return torch.unique(batches[turn % _NUM_BATCHES], return_inverse=True)

    found = kernels.dedup(batches[0])
    if not torch.equal(found.keys[found.inverse], batches[0]):
        raise AssertionError("dedup: keys[inverse] must be equal to the ids")
    if len(found.keys) != len(torch.unique(batches[0])):
        raise AssertionError("dedup: a key occurs twice")
    our_seconds, their_seconds = machine.seconds_of(ours), machine.seconds_of(theirs)
    explained = machine.explained(our_seconds, machine.stages_of(ours))
    return [
        machine.figure("dedup of 1 M ids", num_ids / our_seconds / 1e9, "G ids/s", None, explained),
        machine.figure(
            "dedup / torch.unique", their_seconds / our_seconds, "x", Bar(at_least=3.0),
            "return_inverse=True, the same ids",
        ),
    ]  # fmt: skip
