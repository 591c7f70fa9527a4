"""Pooling and training of bags of ids, compared with FBGEMM's batched tables and torch's EmbeddingBag."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.inputs import Batch, batches
from benchmarks.limits import bytes_of_forward, bytes_of_step, pool_dense, seconds_at
from benchmarks.measuring import Figure, Timing, alternate, ratios
from benchmarks.ours import OurBags
from benchmarks.peers import fbgemm
from benchmarks.peers.torch_bags import TorchBags
from benchmarks.scale import Scale
from benchmarks.threads import torch_threads

__all__ = ["measure"]

DIM, NUM_BAGS, BAG_SIZE = 64, 65_536, 4
NUM_ROWS, THREADS = 4_000_000, 2
NUM_BATCHES = 12
LR, EPS = 0.01, 1e-8
ADAM = {"lr": LR, "eps": 1e-12}
# Contenders sum gradients in different orders. Adaptive methods divide by the size of a sum, so if
# gradients nearly cancel, rounding determines the direction: a few elements may differ.
TOLERANCE, MOST_DIFFERENT = 2e-5, 1e-4


class Bags(Protocol):
    def pooled(self, batch: Batch) -> Tensor: ...

    def forward(self, inputs: Sequence[Batch]) -> Callable[[], object]: ...

    def step(self, inputs: Sequence[Batch], gradient: Tensor) -> Callable[[], object]: ...


@torch_threads(THREADS)
def measure(scale: Scale) -> list[Figure]:
    """Measures ratios to each peer, and to the memory limit."""
    num_rows, num_bags = scale.rows(NUM_ROWS), scale.rows(NUM_BAGS)
    random = np.random.default_rng(0)
    dense = random.standard_normal((num_rows, DIM), np.float32) * np.float32(0.05)
    gradient = torch.from_numpy(random.standard_normal((num_bags, DIM), np.float32) * 0.01)
    figures: list[Figure] = []
    for skew in ("uniform", "zipf"):
        inputs = batches(
            NUM_BATCHES, skew=skew, num_rows=num_rows, num_bags=num_bags, bag_size=BAG_SIZE
        )
        figures += _beside_fbgemm(scale, skew, dense, inputs, gradient)
        figures += _beside_torch(scale, skew, dense, inputs, gradient)
        figures.append(_narrow(scale, skew, dense, inputs, gradient))
    return figures


def _beside_fbgemm(
    scale: Scale,
    skew: str,
    dense: npt.NDArray[np.float32],
    inputs: Sequence[Batch],
    gradient: Tensor,
) -> list[Figure]:
    contenders: dict[str, Bags] = {"ours": OurBags(dense, "rowwise_adagrad", lr=LR, eps=EPS)}
    reason = fbgemm.why_unavailable()
    if reason is None:
        contenders["theirs"] = fbgemm.FbgemmBags(dense, optimizer="rowwise_adagrad", lr=LR, eps=EPS)
    _check_agreement(contenders, inputs, gradient)
    forward = alternate(
        {name: each.forward(inputs) for name, each in contenders.items()}
        | {"limit": pool_dense(dense, inputs)},
        rounds=scale.rounds(30),
    )
    step = alternate(
        {name: each.step(inputs, gradient) for name, each in contenders.items()}
        | {"limit": pool_dense(dense, inputs)},
        rounds=scale.rounds(15),
    )
    _close(contenders)
    num_ids = len(inputs[0].ids)
    forward_bar = 1.0
    step_bar = {"uniform": 1.25, "zipf": 1.2}[skew]
    figures = []
    if reason is None:
        figures += [
            _against(f"pooled forward, {skew}", "FBGEMM TBE", forward, forward_bar, num_ids),
            _against(
                f"forward + backward + rowwise Adagrad, {skew}",
                "FBGEMM TBE",
                step,
                step_bar,
                num_ids,
            ),
        ]
    else:
        figures.append(Figure(f"FBGEMM TBE, {skew}", "not measured", detail=reason))
    for what, timings, num_bytes, bar in (
        (f"pooled forward, {skew}", forward, bytes_of_forward(inputs, DIM), None),
        (f"whole step, rowwise Adagrad, {skew}", step, bytes_of_step(inputs, DIM, 1), 1.8),
    ):
        limit = seconds_at(num_bytes, timings["limit"].median, inputs, DIM)
        share = timings["ours"].median / limit
        is_reached = None if bar is None or skew == "zipf" else share <= bar
        figures.append(
            Figure(
                what=f"  {what}, compared with the memory limit",
                value=f"{share:.2f} x the limit",
                bar=None if bar is None or skew == "zipf" else f"<= {bar} x",
                is_reached=is_reached,
                detail=f"{num_bytes / 1e6:.0f} MB must be moved: {limit * 1e3:.1f} ms"
                + _most(timings, limit),
            )
        )
    return figures


def _most(timings: dict[str, Timing], limit: float) -> str:
    """Describes the peer's distance from the limit."""
    if "theirs" not in timings:
        return ""
    return f", {timings['theirs'].median / limit:.1f} x as fast as FBGEMM"


def _beside_torch(
    scale: Scale,
    skew: str,
    dense: npt.NDArray[np.float32],
    inputs: Sequence[Batch],
    gradient: Tensor,
) -> list[Figure]:
    cases: list[tuple[str, Any, Any, dict[str, Any], float | None]] = [
        ("SGD", "sgd", torch.optim.SGD, {"lr": LR}, None),
        ("Adagrad", "adagrad", torch.optim.Adagrad, {"lr": LR}, 10.0),
        # The usual code of a user. With a tiny eps, because SparseAdam adds it elsewhere.
        ("torch.optim.Adam", torch.optim.Adam, torch.optim.SparseAdam, ADAM, 5.5),
        ("fused Adam", "adam", torch.optim.SparseAdam, ADAM, None),
    ]
    figures = []
    for label, ours, theirs, hyper, bar in cases:
        contenders: dict[str, Bags] = {
            "ours": OurBags(dense, ours, **hyper),
            "theirs": TorchBags(dense, theirs, **hyper),
        }
        if isinstance(ours, type):
            contenders["shadow"] = OurBags(dense, ours, update="shadow", **hyper)
        _check_agreement(contenders, inputs, gradient)
        timings = alternate(
            {name: each.step(inputs, gradient) for name, each in contenders.items()},
            rounds=scale.rounds(7),
            warm_up=1,
        )
        _close(contenders)
        for name, what, name_bar in (("ours", label, bar), ("shadow", f"{label}, shadow", 3.5)):
            if name in timings:
                figures.append(
                    _against(
                        f"forward + backward + {what}, {skew}",
                        f"EmbeddingBag(sparse) + {theirs.__name__}",
                        {"ours": timings[name], "theirs": timings["theirs"]},
                        name_bar if skew == "uniform" else None,
                        len(inputs[0].ids),
                    )
                )
    return figures


def _narrow(
    scale: Scale,
    skew: str,
    dense: npt.NDArray[np.float32],
    inputs: Sequence[Batch],
    gradient: Tensor,
) -> Figure:
    """Measures rows of half the bytes, which reduce memory traffic."""
    contenders = {
        dtype: OurBags(dense, "rowwise_adagrad", dtype=dtype, lr=LR, eps=EPS)
        for dtype in ("float32", "bfloat16")
    }
    timings = alternate(
        {dtype: each.step(inputs, gradient) for dtype, each in contenders.items()},
        rounds=scale.rounds(15),
    )
    for each in contenders.values():
        each.close()
    return _against(
        f"step, rowwise Adagrad, bfloat16 rows, {skew}",
        "ours in float32",
        {"ours": timings["bfloat16"], "theirs": timings["float32"]},
        1.2 if skew == "uniform" else None,
        len(inputs[0].ids),
    )


def _check_agreement(
    contenders: dict[str, Bags], inputs: Sequence[Batch], gradient: Tensor
) -> None:
    """Takes two steps with each contender and checks that all give the same embeddings."""
    results = {}
    for name, each in contenders.items():
        step = each.step(inputs[:2], gradient)
        step()
        step()
        results[name] = each.pooled(inputs[0])
    for name, found in results.items():
        is_close = torch.isclose(found, results["ours"], rtol=TOLERANCE, atol=TOLERANCE)
        share = 1 - float(is_close.float().mean())
        if share > MOST_DIFFERENT:
            raise AssertionError(
                f"{share:.2%} of the embeddings of {name} differ from ours by more than {TOLERANCE}"
            )


def _close(contenders: dict[str, Bags]) -> None:
    for each in contenders.values():
        if isinstance(each, OurBags):
            each.close()
    contenders.clear()
    gc.collect()


def _against(
    what: str, peer: str, timings: dict[str, Timing], bar: float | None, num_ids: int
) -> Figure:
    found = ratios(timings["theirs"], timings["ours"])
    ratio = median(found)
    return Figure(
        what=what,
        value=f"{ratio:.2f} x {peer}",
        bar=None if bar is None else f">= {bar:g} x",
        is_reached=None if bar is None else ratio >= bar,
        detail=(
            f"{num_ids / timings['ours'].median / 1e6:.2f} against "
            f"{num_ids / timings['theirs'].median / 1e6:.2f} M ids/s; rounds "
            f"{min(found):.2f}-{max(found):.2f} x"
        ),
        ratio=ratio,
    )
