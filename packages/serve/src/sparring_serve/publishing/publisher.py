"""Turns snapshots of a run into serving snapshots, as deltas where that is possible."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import sparring_packed
from sparring import Snapshot, latest_snapshot, open_snapshot
from sparring.adapter import open_root
from sparring.errors import InvalidArgumentError, SnapshotError, SnapshotIOError, UnknownTableError
from sparring_serve.publishing.evaluation import EvaluationCheck, EvaluationReport

__all__ = ["PublishResult", "PublisherOptions", "publish_newest"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """How serving snapshots are written.

    Args:
        quantize: table → dtype of stored rows; the name ``*`` stands for all others.
        full_every: one in so many is full; those between are deltas. A lookup walks the layers of a
            chain: 4 took 1.5 times as long as one, 16 three times.
        most_delta_share: a full one is due when the deltas of a chain have more than this share of
            the rows of the full one that they are over: servers hold both.
        keep: serving snapshots that stay, the newest, with all that they are over.
    """

    quantize: Mapping[str, str]
    full_every: int = 4
    keep: int = 3
    most_delta_share: float = 0.25

    def __post_init__(self) -> None:
        for name, value, most in (("full_every", self.full_every, 32), ("keep", self.keep, 10**6)):
            least = 2 if name == "keep" else 1
            if not least <= value <= most:
                raise InvalidArgumentError(
                    f"publish: {name} must be {least} to {most:,}, found {value}"
                )
        if not self.most_delta_share >= 0:
            raise InvalidArgumentError(
                "publish: most_delta_share must be a number of at least 0, found "
                f"{self.most_delta_share}"
            )


@dataclass(frozen=True, slots=True)
class PublishResult:
    """One serving snapshot that was committed.

    Args:
        written: what was written.
        is_delta: over the one before it.
        removed: names of serving snapshots that went.
        quality: what quantization costs, where that was measured.
    """

    written: sparring_packed.WriteResult
    is_delta: bool
    removed: tuple[str, ...]
    quality: EvaluationReport | None = None


def publish_newest(
    run_url: str | os.PathLike[str],
    out_url: str | os.PathLike[str],
    options: PublisherOptions,
    quality: EvaluationCheck | None = None,
) -> PublishResult | None:
    """Publishes the newest snapshot of a run, unless it is published with these dtypes already.

    If it is published with other dtypes, a full serving snapshot is written next to it, with a number
    behind its name, and servers that start take that one.

    Args:
        run_url: of a snapshot, or of a folder of them.
        out_url: of the folder of serving snapshots; it is made.
        options: how they are written.
        quality: what measures the model before anything is published; None: nothing does.

    Returns:
        None where the newest snapshot is published already.

    Raises:
        SnapshotError: there is no snapshot, or it is damaged.
        UnknownTableError: `quantize` names a table that is not in the snapshot.
        InvalidArgumentError: a dtype is unknown, or does not fit.
        MetricLossError: quantized rows cost too much; nothing was published.
    """
    snapshot = _snapshot_at(run_url)
    quantize = _quantize(snapshot, options.quantize)
    existing = _existing(out_url)
    out = os.fspath(out_url).rstrip("/")
    name, base = snapshot.name, _base(snapshot, existing, options)
    changes = ""
    done = [each for each in existing if existing[each].source.hash == snapshot.manifest_hash]
    if done:
        changes = _dtype_changes(existing[done[-1]], quantize)
        if not changes:
            return None
        # Tables that are not named keep the dtype that servers have now.
        quantize = {each.name: each.dtype for each in existing[done[-1]].tables} | quantize
        name = _next_name(snapshot.name, done[-1])
    url = f"{out}/{name}"
    report = None
    if quality is not None:
        # Tables of a delta are stored as those of its base.
        inherited = (
            {} if base is None else {each.name: each.dtype for each in existing[base].tables}
        )
        report = quality.check(snapshot, inherited | quantize)
    written = None
    if base is not None:
        try:
            written = sparring_packed.write(
                snapshot.url, url, quantize=quantize, base=f"{out}/{base}"
            )
        except InvalidArgumentError as error:
            _log.info("a full serving snapshot is written, no delta: %s", error)
    is_delta = written is not None
    if written is None:
        written = sparring_packed.write(snapshot.url, url, quantize=quantize)
    if changes:
        _log.warning(
            "%s/%s was published with table %s; it was published again, as %s. Servers that run keep "
            "the dtypes that they opened; restart them to take the new one",
            out, done[-1], changes, name,
        )  # fmt: skip
    return PublishResult(written, is_delta, tuple(_retain(out, options.keep)), report)


def _snapshot_at(url: str | os.PathLike[str]) -> Snapshot:
    try:
        return open_snapshot(url)
    except SnapshotError as error:
        newest = latest_snapshot(url)
        if newest is None:
            raise SnapshotError(
                f"{url}: is no snapshot ({error}), and has none in it; give the run a folder with "
                "snapshots.url, and train"
            ) from None
        return newest


def _quantize(snapshot: Snapshot, given: Mapping[str, str]) -> dict[str, str]:
    unknown = sorted(set(given) - set(snapshot.tables) - {"*"})
    if unknown:
        raise UnknownTableError(
            f"publish: snapshot {snapshot.url} has no table {unknown[0]!r} to quantize; it has "
            f"{', '.join(sorted(snapshot.tables))}",
            table=unknown[0],
        )
    chosen = {name: given.get(name, given.get("*")) for name in snapshot.tables}
    return {name: dtype for name, dtype in chosen.items() if dtype is not None}


def _dtype_changes(published: sparring_packed.ServingManifest, quantize: Mapping[str, str]) -> str:
    """The tables that are published with another dtype than `quantize` asks for; empty: none."""
    return ", ".join(
        f"{table.name!r} as {table.dtype}, not {quantize[table.name]}"
        for table in published.tables
        if quantize.get(table.name, table.dtype) != table.dtype
    )


def _next_name(name: str, last: str) -> str:
    """The name of a snapshot that is published again. Names of one step sort by their age, as readers
    take the last."""
    number = re.fullmatch(r"-(\d{3})", last.removeprefix(name))
    return f"{name}-{int(number[1]) + 1 if number else 2:03d}"


def _existing(out_url: str | os.PathLike[str]) -> dict[str, sparring_packed.ServingManifest]:
    """Serving snapshots of a folder by name, the newest last, in the order of readers."""
    place = open_root(out_url)
    found = {}
    try:
        names = [each for each in place.names() if place.is_committed(each)]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SnapshotIOError(f"{out_url}: cannot be listed: {error}; mend the folder") from error
    for name in names:
        try:
            found[name] = sparring_packed.read_manifest(f"{os.fspath(out_url).rstrip('/')}/{name}")
        except SnapshotError as error:
            _log.warning("%s: is left alone: %s", name, error)
    return dict(sorted(found.items(), key=lambda each: (each[1].step, each[0])))


def _base(
    snapshot: Snapshot,
    existing: Mapping[str, sparring_packed.ServingManifest],
    options: PublisherOptions,
) -> str | None:
    """The serving snapshot that a delta may be over; None: a full one is due."""
    if not existing:
        return None
    name = list(existing)[-1]
    newest = existing[name]
    if newest.source.hash not in [each.manifest_hash for each in snapshot.chain[1:]]:
        return None
    *deltas, full = _chain(name, existing)
    if len(deltas) + 1 >= options.full_every:
        return None
    num_changed = sum(_num_keys(existing[each]) for each in deltas)
    return name if num_changed <= options.most_delta_share * _num_keys(existing[full]) else None


def _num_keys(manifest: sparring_packed.ServingManifest) -> int:
    """Rows and erased ids of one serving snapshot, over all tables."""
    return sum(each.num_keys for each in manifest.files if each.kind in ("rows", "erased"))


def _chain(name: str, existing: Mapping[str, sparring_packed.ServingManifest]) -> list[str]:
    """A serving snapshot and those that it is over."""
    chain = [name]
    while True:
        manifest = existing.get(chain[-1])
        if manifest is None or manifest.base is None or manifest.base.name in chain:
            return chain
        chain.append(manifest.base.name)


def _retain(out_url: str, keep: int) -> list[str]:
    """Removes all but the newest, and what those are over. Servers go on with files that they mapped."""
    existing = _existing(out_url)
    kept = {each for name in list(existing)[-keep:] for each in _chain(name, existing)}
    place = open_root(out_url)
    # The newest first: no delta is ever seen without its base.
    removed = [name for name in reversed(existing) if name not in kept]
    for name in removed:
        try:
            place.remove(name)
        except OSError as error:
            raise SnapshotIOError(
                f"{out_url}: {name} cannot be removed: {error}; mend the folder, or keep more"
            ) from error
    return removed
