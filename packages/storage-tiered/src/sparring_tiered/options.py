"""Options of a stack, and the conversion of a tier's budget to the options of its backend."""

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
    """Name of a storage that core or a plugin registers."""
    budget_bytes: ByteCount | None = Field(default=None, ge=1)
    """Maximum memory of this tier: a number of bytes, or text such as ``512 MiB``. None leaves the
    limit to the options of the backend."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the backend."""


class RefreshOptions(Options):
    """How a reader follows the change notes of a trainer."""

    notes: str | None = Field(default=None, min_length=1)
    """Folder of the notes, a path or a URL of fsspec: `change_notes.url` of the trainer. None reads them
    from the backend of the last tier, if it stores notes, as Redis does."""
    poll_seconds: float = Field(default=1.0, gt=0, le=3600, allow_inf_nan=False)
    """Interval between polls for new notes. After a failure of the backend, finds of keys that are not
    cached fail for the same time without calling the backend."""
    batch_rows: WholeNumber = Field(default=16_384, ge=1, le=1 << 20)
    """Number of changed keys that are read again at a time."""
    drop_seconds: float = Field(default=60.0, ge=0, le=86_400, allow_inf_nan=False)
    """After a missed note, the rows that are cached at that moment are removed evenly over this time.
    Until then they may be older than the notes by this time."""


def _parse_tier(value: object) -> object:
    """Converts the name of a backend to a tier with default options."""
    return {"backend": value} if isinstance(value, str) else value


class TieredOptions(Options):
    """Options of a stack of storages."""

    tiers: tuple[Annotated[TierOptions, BeforeValidator(_parse_tier)], ...]
    """Tiers from the hottest to the last. An item is a mapping, or the name of a backend."""
    write: Literal["back", "through"] = "back"
    """When written rows move to lower tiers: ``back``: when the first tier evicts them, and at a flush;
    ``through``: before the write returns."""
    promote: Literal["always", "second_touch", "never"] = "always"
    """Which rows that were found in a lower tier are copied into the first tier: all, those that were
    found there once before, or none. Written rows always enter the first tier."""
    false_positive_rate: float = Field(default=0.01, ge=2e-6, le=0.5)
    """Share of unknown keys for which a lower tier is read although it does not contain them."""
    write_back: Literal["background", "inline"] = "background"
    """How rows are written to the last tier: ``background``: on a thread of the container's event loop,
    if that tier supports concurrent readers; ``inline``: within the write that evicted them."""
    buffer_bytes: ByteCount = Field(default=64 << 20, ge=1)
    """Maximum memory for rows that wait for a lower tier, and for rows that wait for promotion. A write
    that might exceed it first waits for the lower tier."""
    deadline_seconds: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Maximum time that a call waits for a background write to the last tier."""
    refresh: RefreshOptions | None = None
    """Opens the stack for reading, while another process trains the last tier. The change notes of
    that process keep the other tiers, which are caches, up to date. None: this process writes the
    rows."""

    @field_validator("tiers")
    @classmethod
    def _check_num_tiers(cls, tiers: tuple[TierOptions, ...]) -> tuple[TierOptions, ...]:
        # This is not a `min_length`, because that counts only the valid items.
        if len(tiers) < 2:
            raise PydanticCustomError(
                "too_few_tiers",
                "a stack must have at least two tiers, found {count}; add a lower tier, or use the "
                "backend of the only tier instead of 'tiered'",
                {"count": len(tiers)},
            )
        return tiers

    @model_validator(mode="after")
    def _check_refresh(self) -> TieredOptions:
        of_writers = {"write", "promote", "write_back", "deadline_seconds"} & self.model_fields_set
        if self.refresh is not None and of_writers:
            raise PydanticCustomError(
                "writes_and_reads",
                "{name} is an option for stacks that this process writes to, but refresh opens the stack "
                "for reading; remove one of them",
                {"name": min(of_writers)},
            )
        return self


def inner_storages(options: TieredOptions) -> Sequence[InnerStorage]:
    """Returns the storages in the options of a stack."""
    return [
        InnerStorage(("tiers", place), tier.backend, tier.options)
        for place, tier in enumerate(options.tiers)
    ]


def list_tier_problems(options: TieredOptions, manager: PluginManager) -> Sequence[OptionProblem]:
    """Returns the problems of budgets and limits that can be found without a table."""
    problems = []
    for place in range(len(options.tiers)):
        try:
            build_backend_options(options, place, manager, row_bytes=1)
        except _TierError as error:
            problems.append(OptionProblem(("tiers", place, *error.below), str(error)))
    return problems


class _TierError(InvalidArgumentError):
    """The options of a tier are invalid; `below` is the path of the invalid option in them."""

    def __init__(self, message: str, *below: str) -> None:
        super().__init__(message)
        self.below = below


def build_backend_options(
    options: TieredOptions, place: int, manager: PluginManager, *, row_bytes: int
) -> Mapping[str, Any]:
    """Returns the options for opening the backend of a tier.

    Converts a budget to the backend's ``memory_bytes``, or to the ``capacity`` in rows that fit. Sets
    the policy of a bounded tier above the last to ``lru``, if its backend has policies and the user
    chose none.

    Args:
        options: Options of the stack.
        place: Position of the tier, from 0.
        manager: Finds backends by name.
        row_bytes: Bytes per row.

    Raises:
        InvalidArgumentError: The backend supports no limit for the budget, the budget is combined with
            another limit, or a bounded tier above the last would reject rows instead of evicting them.
    """
    tier = options.tiers[place]
    descriptor = manager.storage(tier.backend)
    fields = descriptor.options.model_fields
    result = dict(tier.options)
    if tier.budget_bytes is not None:
        bounds = _list_bounds(descriptor)
        if not bounds:
            raise _TierError(
                f"backend {tier.backend!r} has no limit of memory, so budget_bytes cannot be set; remove "
                f"it, or choose one of the backends {', '.join(_list_bounded_backends(manager))}",
                "budget_bytes",
            )
        given = [name for name in bounds if name in result]
        if given:
            raise _TierError(
                f"budget_bytes and options.{given[0]} both limit this tier; remove one of them",
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
                "with policy 'none' a full tier rejects rows, but tiers above the last must evict them; "
                "choose another policy such as lru, or remove the limit",
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
