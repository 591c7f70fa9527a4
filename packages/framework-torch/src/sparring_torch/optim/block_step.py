"""Runs a native optimizer's step over rows in blocks.

Optimizers written in Python pass over their rows many times: Adam runs a dozen kernels. For a large
step, each pass reads all rows from memory. For a block that fits in a core's cache, only the first
pass does. The result is the same, because the optimizer works row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.optim import Optimizer

from sparring_torch.optim.shadow_parameter import ShadowParameter

__all__ = ["BLOCK_BYTES", "step_in_blocks", "unhooked_step"]

BLOCK_BYTES = 8 << 20
"""Size of rows with their gradients; with an optimizer's temporaries, they fit in a core's cache."""


def step_in_blocks(
    step: Callable[[], object],
    shadows: Sequence[ShadowParameter],
    param_groups: Sequence[dict[str, Any]],
    block_bytes: int | None,
) -> None:
    """Steps the optimizer over the rows that `shadows` have loaded.

    Args:
        step: step function of the optimizer of all these shadows.
        shadows: shadows of the tables; all blocks of a table are one step.
        param_groups: groups of the optimizer; changes by a step are applied once.
        block_bytes: maximum size of a block of each table, which has at least one row; None processes
            each table at once.
    """
    sizes, num_blocks = list[int](), min(1, len(shadows))
    for shadow in shadows:
        size = shadow.num_rows if block_bytes is None else max(1, block_bytes // shadow.row_bytes)
        num_blocks = max(num_blocks, -(-shadow.num_rows // max(1, size)))
        sizes.append(size)
    before = [dict(group) for group in param_groups] if num_blocks > 1 else []
    for number in range(num_blocks):
        if number > 0:
            for group, values in zip(param_groups, before, strict=True):
                group.update(values)
        for shadow, size in zip(shadows, sizes, strict=True):
            shadow.show(number * size, (number + 1) * size)
        step()
        for shadow in shadows:
            shadow.store()


def unhooked_step(optimizer: Optimizer) -> Callable[[], object]:
    """Returns the optimizer's step without torch's wrapper for hooks and profiling.

    Hooks belong to the step that a user calls, `sparring_torch.Optimizer.step`.
    """
    step: Any = type(optimizer).step
    return partial(step.__wrapped__ if getattr(step, "hooked", False) else step, optimizer)
