"""Conclusions that ranks draw from each other's headers, the same on all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from sparring import errors
from sparring.contracts.collective import Collective
from sparring.errors import InvalidArgumentError, PeerFailure, SparringError
from sparring.exchange.headers import Header, Phase, given_up

__all__ = ["Settings", "check_headers", "digest_of", "raise_first", "refuse_together"]

Settings = Mapping[str, Any]
"""Settings that all ranks must have alike: names to JSON values or further such mappings."""


def digest_of(value: Any) -> int:
    """63 bits of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def check_headers(
    collective: Collective,
    headers: Sequence[Header],
    settings: Settings,
    requests: Sequence[str],
) -> None:
    """Returns if all ranks are in one place, with one set-up, and about to do the same.

    Args:
        headers: of all ranks.
        settings: of this rank.
        requests: what this rank is about to exchange, in words.

    Raises:
        PeerFailure: a rank has ended, or is elsewhere.
        InvalidArgumentError: ranks were set up otherwise, or exchange other tables, and none
            refuses the exchange anyway.
    """
    mine = headers[collective.rank]
    elsewhere = [
        rank
        for rank, theirs in enumerate(headers)
        if (theirs.phase, theirs.step) != (mine.phase, mine.step)
    ]
    if elsewhere:
        # A rank that has ended explains why others are elsewhere.
        peer = min(elsewhere, key=lambda rank: headers[rank].phase is not Phase.ENDED)
        raise _elsewhere(collective, mine, peer, headers[peer])
    if any(each.has_error for each in headers):
        return  # what a rank refuses may be why it differs: `refuse_together` says it
    if any(each.settings != mine.settings for each in headers):
        everybody = _gather(collective, settings)
        _refuse_settings(everybody)
    if any(each.requests != mine.requests for each in headers):
        asked = _gather(collective, {"requests": list(requests)})
        found = "; ".join(
            f"rank {rank}: {', '.join(each['requests']) or 'nothing'}"
            for rank, each in enumerate(asked)
        )
        raise InvalidArgumentError(
            f"at step {mine.step} ranks exchange rows of different tables ({found}); all ranks "
            "must look up the same tables in the same order, with empty batches where they have "
            "no ids"
        )


def refuse_together(
    collective: Collective, headers: Sequence[Header], error: BaseException | None
) -> None:
    """Raises on all ranks an error that any of them has; returns if there is none.

    Args:
        headers: of all ranks.
        error: what this rank cannot go on with.

    Raises:
        BaseException: `error`.
        SparringError: another rank's error, of its class, naming that rank as `rank`.
        PeerFailure: another rank's error is none of sparring's.
    """
    if not any(each.has_error for each in headers):
        return
    mine = headers[collective.rank]
    if mine.phase in (Phase.PUSH, Phase.COMMIT):
        what, operation = "cannot apply it, so no rank does", "apply"
    else:
        what, operation = "cannot look its rows up, so no rank does", "pull"
    try:
        raise_first(collective, error, f"step {mine.step}: ", what, step=mine.step)
    except _ForeignError as foreign:
        raise PeerFailure(
            str(foreign),
            rank=foreign.rank,
            operation=operation,
            table=None,
            step=mine.step,
            is_certain=True,
        ) from None


class _ForeignError(SparringError):
    """Another rank's error that is none of sparring's."""


def raise_first(
    collective: Collective,
    error: BaseException | None,
    where: str,
    what: str,
    *,
    otherwise: type[SparringError] = _ForeignError,
    **details: object,
) -> NoReturn:
    """Raises, on all ranks, what one of them cannot go on with. All ranks call it together.

    Args:
        error: of this rank; None: only others have one.
        where: begins the message of ranks that have none.
        what: follows there after the name of the rank.
        otherwise: raised in place of an error that is none of sparring's.
        details: for the error on ranks that have none, besides those of the error itself and `rank`,
            which is the rank that has it; of a `PeerFailure` it stays the rank that failed.

    Raises:
        BaseException: `error`.
        SparringError: the error of the first rank that has one, of its class, naming that rank.
    """
    said = _gather(collective, _described(error))
    if error is not None:
        raise error
    rank = next(rank for rank, each in enumerate(said) if each)
    first = said[rank]
    kind = _error_class(first["class"]) or otherwise
    text = f"{where}rank {rank} {what}: {first['message']}"
    said_of = (
        {"rank": rank, **first["details"]}
        if kind is PeerFailure
        else first["details"] | {"rank": rank}
    )
    raise kind(text, **{**details, **said_of})


def _described(error: BaseException | None) -> dict[str, Any]:
    if error is None:
        return {}
    details = getattr(error, "details", {}) if isinstance(error, SparringError) else {}
    return {
        "class": type(error).__name__,
        "message": str(error) or type(error).__name__,
        "details": {
            name: value for name, value in details.items() if isinstance(value, (str, int, float))
        },
    }


def _error_class(name: str) -> type[SparringError] | None:
    if name == "BackgroundError":
        from sparring.runtime.events import BackgroundError

        return BackgroundError
    found = getattr(errors, name, None)
    is_ours = isinstance(found, type) and issubclass(found, SparringError)
    return found if is_ours else None


def _gather(collective: Collective, value: Any) -> list[Any]:
    """Values of all ranks; only ever called by all ranks, when something is wrong."""
    text = json.dumps(value, sort_keys=True).encode()
    parts = collective.all_gather(np.frombuffer(text, np.uint8))
    return [json.loads(part.tobytes()) for part in parts]


def _refuse_settings(everybody: Sequence[Settings]) -> NoReturn:
    for rank, theirs in enumerate(everybody):
        for name, (first, other) in _differences(everybody[0], theirs):
            raise InvalidArgumentError(
                f"ranks were set up differently: {name} is {first} on rank 0 and {other} on rank "
                f"{rank}; start all ranks with one configuration, one set of tables and one "
                "version of the code",
                setting=name,
                rank=rank,
            )
    raise InvalidArgumentError(
        "ranks were set up differently; start all ranks with one configuration"
    )


def _differences(first: Any, other: Any, name: str = "") -> list[tuple[str, tuple[str, str]]]:
    """The names under which two settings differ, with both values."""
    if isinstance(first, Mapping) and isinstance(other, Mapping):
        found = []
        for key in sorted({*first, *other}):
            below = f"{name}.{key}" if name else key
            found += _differences(first.get(key), other.get(key), below)
        return found
    if first == other:
        return []
    return [(name, (_shown(first), _shown(other)))]


def _shown(value: Any) -> str:
    return "missing" if value is None else json.dumps(value)


def _elsewhere(collective: Collective, mine: Header, peer: int, theirs: Header) -> PeerFailure:
    is_training = mine.phase in (Phase.LOOKUP, Phase.PUSH)
    if theirs.phase is Phase.ENDED or (theirs.phase is Phase.READ and is_training):
        return given_up(collective, peer, theirs)
    return PeerFailure(
        f"rank {peer} {theirs.phase.verb}, step {theirs.step}, while rank {collective.rank} "
        f"{mine.phase.verb}, step {mine.step}; all ranks must make the same lookups and steps in "
        "the same order",
        rank=peer,
        operation=collective.context.operation,
        table=collective.context.table,
        step=mine.step,
        is_certain=True,
    )
