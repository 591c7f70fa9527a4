"""The `publish.gate` section: when versions of a model that got worse are withheld."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sparring_train.config.section import PositiveFloat, PositiveInt, Section

__all__ = ["GateConfig"]


class GateConfig(Section):
    """Withholds versions while the model predicts new events worse than before, and makes servers
    return to the last good version. A stream with windows of event time, `metrics.window_seconds`, is
    required.
    """

    false_alarms_per_day: PositiveFloat = Field(
        0.01,
        description="Maximum mean number of times per day at which noise closes the gate. A smaller "
        "number needs more windows, or a larger loss of quality, until the gate closes.",
    )
    min_events: PositiveInt = Field(
        1000, description="Windows are joined until they have this number of events."
    )
    warm_up_windows: Annotated[int, Field(ge=5, le=1_000_000)] = Field(
        20, description="Number of windows before the gate can close."
    )
    open_after_windows: PositiveInt = Field(
        3, description="Number of good windows in a row after which a closed gate opens."
    )
    on_close: Literal["withhold", "return"] = Field(
        "withhold",
        description="`withhold`: training continues. `return`: it also returns to the newest snapshot "
        "before the bad windows, and leaves out the events since then; see `sparring replay "
        "--quarantined`. It returns again after each bad window, until the gate opens.",
    )
    max_returns: PositiveInt = Field(
        3,
        description="Number of returns without an open gate in between, after which a run with "
        "`on_close: return` no longer returns, because the data may have changed for good. Training "
        "continues with all events, and versions are withheld.",
    )
