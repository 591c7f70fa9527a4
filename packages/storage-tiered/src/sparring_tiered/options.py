"""Options of a stack, and the option of a backend that a budget in bytes becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sparring.contracts import ByteCount, InnerStorage, OptionProblem, Options, WholeNumber
from sparring.errors import InvalidArgumentError

if TYPE_CHECKING:
    from sparring import PluginManager
    from sparring.contracts import StorageDescriptor

__all__ = [
    "RefreshOptions",
    "TierOptions",
    "TieredOptions",
    "build_backend_options",
    "inner_storages",
    "list_tier_problems",
]

_KEY_BYTES = 8


class TierOptions(Options):
    """One tier of a stack."""

    backend: str
    """A storage that core or a plugin offers."""
    budget_bytes: ByteCount | None = Field(default=None, ge=1)
    """The most memory of this tier: a number of bytes, or text such as ``512 MiB``. None leaves
    the bound to the backend's own options."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The options of that backend."""


class RefreshOptions(Options):
    """How a reader follows the change notes of a trainer."""

    notes: str | None = Field(default=None, min_length=1)
    """The folder of the notes, a path or a URL of fsspec: `change_notes.url` of the trainer. None: they
    are with the rows of the last tier, where its backend keeps notes, as Redis does."""
    poll_seconds: float = Field(default=1.0, gt=0, le=3600, allow_inf_nan=False)
    """How often new notes are looked for. After a failure of the backend, keys that are not cached are
    refused for as long, without a trip."""
    batch_rows: WholeNumber = Field(default=16_384, ge=1, le=1 << 20)
    """Changed keys that are read again at a time."""
    drop_seconds: float = Field(default=60.0, ge=0, le=86_400, allow_inf_nan=False)
    """Where a note was missed, the rows that are cached then leave within this time, evenly; they may be
    as much older than the notes."""


def _parse_tier(value: object) -> object:
    """A name stands for the tier of that backend with its defaults."""
    return {"backend": value} if isinstance(value, str) else value


class TieredOptions(Options):
    """Options of a stack of storages."""

    tiers: tuple[Annotated[TierOptions, BeforeValidator(_parse_tier)], ...]
    """From the hottest to the last. An item is a mapping, or the name of a backend."""
    write: Literal["back", "through"] = "back"
    """When written rows go down: ``back``: when the first tier lets them go, and at a flush;
    ``through``: before the write returns."""
    promote: Literal["always", "second_touch", "never"] = "always"
    """Which rows that were read below come into the first tier: all, those that were read there
    once before, or none. Rows that are written always do."""
    false_positive_rate: float = Field(default=0.01, ge=2e-6, le=0.5)
    """The share of unseen keys that a tier below the first may be asked for in vain."""
    write_back: Literal["background", "inline"] = "background"
    """Where rows that go down to the last tier are written: ``background``: on a thread of the
    container's event loop, where that tier allows readers while it is written to; ``inline``:
    within the write that pushed them out."""
    buffer_bytes: ByteCount = Field(default=64 << 20, ge=1)
    """The most memory for rows on their way to a lower tier, and for rows that wait to be
    promoted. A write that might need more waits for the lower tier first."""
    deadline_seconds: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """The most seconds that a call waits for a background write to the last tier."""
    refresh: RefreshOptions | None = None
    """Open the stack to read what a trainer in another process writes to the last tier: the tiers above
    are caches, kept new by its change notes. None: this process writes the rows."""

    @field_validator("tiers")
    @classmethod
    def _check_num_tiers(cls, tiers: tuple[TierOptions, ...]) -> tuple[TierOptions, ...]:
        # Not by min_length, which counts only the items that are right.
        if len(tiers) < 2:
            raise PydanticCustomError(
                "too_few_tiers",
                "a stack has two tiers or more, found {count}; name a storage below, or choose "
                "the backend of the only one in place of 'tiered'",
                {"count": len(tiers)},
            )
        return tiers

    @model_validator(mode="after")
    def _check_refresh(self) -> TieredOptions:
        of_writers = {"write", "promote", "write_back", "deadline_seconds"} & self.model_fields_set
        if self.refresh is not None and of_writers:
            raise PydanticCustomError(
                "writes_and_reads",
                "{name} is of stacks that are written to, and with refresh this one is read; leave "
                "one of them out",
                {"name": min(of_writers)},
            )
        return self


def inner_storages(options: TieredOptions) -> Sequence[InnerStorage]:
    """The storages that a stack names."""
    return [
        InnerStorage(("tiers", place), tier.backend, tier.options)
        for place, tier in enumerate(options.tiers)
    ]


def list_tier_problems(options: TieredOptions, manager: PluginManager) -> Sequence[OptionProblem]:
    """Problems of budgets and bounds that can be found without a table."""
    problems = []
    for place in range(len(options.tiers)):
        try:
            build_backend_options(options, place, manager, row_bytes=1)
        except _TierError as error:
            problems.append(OptionProblem(("tiers", place, *error.below), str(error)))
    return problems


class _TierError(InvalidArgumentError):
    """A tier cannot be what its options say; `below` is where in them."""

    def __init__(self, message: str, *below: str) -> None:
        super().__init__(message)
        self.below = below


def build_backend_options(
    options: TieredOptions, place: int, manager: PluginManager, *, row_bytes: int
) -> Mapping[str, Any]:
    """The options that a tier's backend is opened with.

    A budget becomes the backend's ``memory_bytes``, or the ``capacity`` in rows that fit. A
    bounded tier above the last gets the policy ``lru`` where its backend has policies and the
    user chose none.

    Raises:
        InvalidArgumentError: a budget for a backend that takes no bound, or together with a bound
            of its own, or a bounded tier above the last that would refuse rows.
    """
    tier = options.tiers[place]
    descriptor = manager.storage(tier.backend)
    fields = descriptor.options.model_fields
    result = dict(tier.options)
    if tier.budget_bytes is not None:
        bounds = _list_bounds(descriptor)
        if not bounds:
            raise _TierError(
                f"backend {tier.backend!r} cannot be bounded, so it takes no budget_bytes; leave "
                f"it out, or choose one that can: {', '.join(_list_bounded_backends(manager))}",
                "budget_bytes",
            )
        given = [name for name in bounds if name in result]
        if given:
            raise _TierError(
                f"budget_bytes and options.{given[0]} both bound this tier; give one of them",
                "budget_bytes",
            )
        budget = tier.budget_bytes
        is_rows = bounds[0] == "capacity"
        result[bounds[0]] = max(1, budget // (row_bytes + _KEY_BYTES)) if is_rows else budget
    is_last = place == len(options.tiers) - 1
    if (
        not is_last
        and "policy" in fields
        and any(name in result for name in _list_bounds(descriptor))
    ):
        policy = result.setdefault("policy", "lru")
        if policy == "none":
            raise _TierError(
                "policy 'none' makes a full tier refuse rows, and those above the last must let "
                "rows go down; choose another policy, as lru, or leave the bound out",
                "options",
                "policy",
            )
    return result


def _list_bounds(descriptor: StorageDescriptor) -> list[str]:
    return [
        name for name in ("memory_bytes", "capacity") if name in descriptor.options.model_fields
    ]


def _list_bounded_backends(manager: PluginManager) -> list[str]:
    from sparring.contracts import StorageDescriptor

    return sorted(
        offer.descriptor.name
        for offer in manager.descriptors()
        if isinstance(offer.descriptor, StorageDescriptor) and _list_bounds(offer.descriptor)
    )
