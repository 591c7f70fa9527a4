"""Several ranks on this machine: the ring compared with `sequential`, the collective with MPI itself, and
a DLRM with TorchRec's `DistributedModelParallel`. All traffic uses loopback or shared memory.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from statistics import median

from benchmarks.measuring import Figure
from benchmarks.rank_processes import NotMeasuredError, run_ranks
from benchmarks.scale import Scale

__all__ = ["measure"]

LOSS_BAR, BANDWIDTH_BAR, DLRM_BAR, TOLERANCE = 1.05, 0.6, 1.1, 1e-4
NUM_BYTES, NUM_ROWS, NUM_SAMPLES = 64 << 20, 100_000, 4_096

STEPS = (
    # collective, ranks, ids, dim, rounds
    ("mpi", 2, 1_000, 16, 200),
    ("mpi", 4, 1_000, 16, 100),
    ("shm", 2, 1_000, 16, 200),
    ("torch", 2, 1_000, 16, 100),
    ("mpi", 2, 16_384, 64, 30),
    ("mpi", 4, 16_384, 64, 20),
    ("shm", 2, 16_384, 64, 30),
    ("torch", 2, 16_384, 64, 30),
    ("mpi", 2, 65_536 * 4, 64, 7),
    ("mpi", 4, 65_536 * 4, 64, 5),
    ("shm", 2, 65_536 * 4, 64, 7),
    ("torch", 2, 65_536 * 4, 64, 7),
)


def measure(scale: Scale) -> list[Figure]:
    """Measures medians over rounds in which contenders alternate; the slowest rank of each counts."""
    # Processes take seconds to start, so a quick run has only one case.
    if scale.is_quick:
        return [_steps(scale, *STEPS[0])]
    dlrm = [
        figure
        for kind, bag_size in (("torch", 1), ("shm+torch", 1), ("shm+torch", 10))
        for figure in _dlrm(scale, kind, bag_size)
    ]
    return [*(_steps(scale, *case) for case in STEPS), _bandwidth(scale), *dlrm]


def _measured(what: str, bar: str, run: Callable[[], list[Figure]]) -> list[Figure]:
    try:
        return run()
    except NotMeasuredError as error:
        return [Figure(what, "not measured", bar=bar, detail=str(error))]


def _steps(
    scale: Scale, collective: str, world_size: int, num_ids: int, dim: int, rounds: int
) -> Figure:
    name = "gloo" if collective == "torch" else collective
    launcher = "torch" if collective == "torch" else "mpi"
    what = f"step of {num_ids:,} ids x {dim}, {world_size} {name} processes"
    given = {
        "what": "steps",
        "collective": collective,
        "num_ids": num_ids,
        "dim": dim,
        "rounds": scale.rounds(rounds),
    }

    def run() -> Figure:
        seconds = run_ranks(launcher, world_size, "benchmarks.rank_exchange", given)
        ring, sequential = seconds["ring"], seconds["sequential"]
        loss = median(one / other for one, other in zip(ring, sequential, strict=True))
        return Figure(
            what=what,
            value=f"ring {loss:.2f} x sequential's time",
            bar=f"<= {LOSS_BAR}",
            is_reached=loss <= LOSS_BAR,
            detail=f"{median(ring) * 1e3:.2f} ms against {median(sequential) * 1e3:.2f} ms; best "
            f"rounds {min(ring) * 1e3:.2f} and {min(sequential) * 1e3:.2f}",
        )

    return _measured(what, f"<= {LOSS_BAR}", lambda: [run()])[0]


def _bandwidth(scale: Scale) -> Figure:
    what = f"{NUM_BYTES >> 20} MB to the next rank, collective mpi, 2 processes"
    given = {"what": "bandwidth", "num_bytes": NUM_BYTES, "rounds": scale.rounds(30)}

    def run() -> Figure:
        seconds = run_ranks("mpi", 2, "benchmarks.rank_exchange", given)
        raw, ours = seconds["raw"], seconds["ours"]
        share = median(one / other for one, other in zip(raw, ours, strict=True))
        return Figure(
            what=what,
            value=f"{share:.0%} of the bandwidth of Isend and Irecv",
            bar=f">= {BANDWIDTH_BAR:.0%}",
            is_reached=share >= BANDWIDTH_BAR,
            detail=f"{NUM_BYTES / median(ours) / 1e9:.1f} against "
            f"{NUM_BYTES / median(raw) / 1e9:.1f} GB/s",
            ratio=share,
        )

    return _measured(what, f">= {BANDWIDTH_BAR:.0%}", lambda: [run()])[0]


def _dlrm(scale: Scale, collective: str, bag_size: int) -> list[Figure]:
    over = "gloo" if collective == "torch" else "shared memory"
    what = f"DLRM, 26 tables of dim 16, 2 processes over {over}, batches of {NUM_SAMPLES:,} each"
    if bag_size > 1:
        what += f", {bag_size} ids per bag"
    bar = f">= {DLRM_BAR:g} x"
    given = {
        "num_rows": NUM_ROWS,
        "num_samples": NUM_SAMPLES,
        "rounds": scale.rounds(15),
        "collective": collective,
        "bag_size": bag_size,
    }

    def run() -> list[Figure]:
        if importlib.util.find_spec("torchrec") is None:
            raise NotMeasuredError("ModuleNotFoundError: No module named 'torchrec'")
        measured = run_ranks("torch", 2, "benchmarks.rank_dlrm", given)
        if any(abs(ours - theirs) > TOLERANCE for ours, theirs in measured["losses"]):
            raise AssertionError(f"the losses differ: {measured['losses']}")
        seconds, cpu = measured["seconds"], measured["cpu_seconds"]
        found = [
            theirs / ours for theirs, ours in zip(seconds["theirs"], seconds["ours"], strict=True)
        ]
        samples = 2 * NUM_SAMPLES
        most = [
            theirs / dense
            for theirs, dense in zip(seconds["theirs"], seconds["dense"], strict=True)
        ]
        return [
            Figure(
                what=what,
                value=f"{median(found):.2f} x TorchRec DistributedModelParallel",
                bar=bar,
                is_reached=median(found) >= DLRM_BAR,
                detail=f"{samples / median(seconds['ours']):,.0f} against "
                f"{samples / median(seconds['theirs']):,.0f} samples/s; rounds {min(found):.2f}-"
                f"{max(found):.2f}; equal losses; CPU time of a step {cpu['ours'] * 1e3:.0f} against "
                f"{cpu['theirs'] * 1e3:.0f} ms",
                ratio=median(found),
            ),
            Figure(
                what="  upper limit, with embeddings that take no time",
                value=f"{median(most):.2f} x",
                detail=f"the dense layers alone, including DDP, take "
                f"{median(seconds['dense']) * 1e3:.1f} ms of our "
                f"{median(seconds['ours']) * 1e3:.1f} ms",
            ),
        ]

    return _measured(what, bar, run)
