"""Plans and simulates how tables are distributed among ranks.

`read_plan` reads the file of a plan; `Plan.sharding` converts it for training. `sketch_ids` counts
how often keys occur. Names are imported on first access, because listing plugins imports
`sparring_plan.plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_plan.planning.costs.sketch import Sketch, sketch_ids
    from sparring_plan.planning.plan import Plan, read_plan

__all__ = ["Plan", "Sketch", "read_plan", "sketch_ids"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'sparring_plan' has no attribute {name!r}")
    from sparring_plan.planning import plan
    from sparring_plan.planning.costs import sketch

    return getattr(sketch if name in sketch.__all__ else plan, name)
