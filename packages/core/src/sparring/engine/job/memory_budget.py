"""Memory budget of the tables of one rank."""

from __future__ import annotations

from sparring.engine.state import EngineState
from sparring.errors import CapacityError

__all__ = ["format_bytes", "check_memory"]


def format_bytes(count: int) -> str:
    """Formats a number of bytes, exactly and with a binary prefix."""
    shown, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if shown < 1024:
            break
        shown, unit = shown / 1024, larger
    return f"{count:,} bytes" + ("" if unit == "bytes" else f" ({shown:.3g} {unit})")


def check_memory(state: EngineState, budget: int) -> None:
    """Checks the memory of this rank's tables before a step is written.

    Raises:
        CapacityError: the tables exceed the budget. The message contains the largest table.
    """
    held = {
        name: 0 if entry.storage is None else entry.storage.memory_bytes
        for name, entry in state.tables.entries.items()
    }
    found = sum(held.values())
    if found <= budget:
        return
    largest = max(held, key=lambda name: held[name])
    raise CapacityError(
        f"the tables of rank {state.membership.rank} use {format_bytes(found)} of memory, the largest is "
        f"table {largest!r} with {format_bytes(held[largest])}; their budget is {format_bytes(budget)}. "
        "No row was changed. Raise the budget (StepContainer(memory_bytes=…), in a "
        "configuration tables.memory_bytes), add ranks, or limit the tables with a capacity and a "
        "policy that evicts",
        memory_bytes=found,
        budget_bytes=budget,
        table=largest,
    )
