"""Converts snapshots of a run to serving snapshots, as deltas if possible."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import sparring_packed
from sparring import Snapshot, latest_snapshot, open_snapshot
from sparring.adapter import open_root
from sparring.errors import (
    InvalidArgumentError,
    SnapshotError,
    SnapshotIOError,
    UnknownTableError,
)
from sparring_packed import WriteOptions
from sparring_serve.publishing.base_check import describe_damage
from sparring_serve.publishing.evaluation import EvaluationCheck, EvaluationReport
from sparring_serve.publishing.gate_file import read_gate, update_gate, without_pin_of_gate
from sparring_serve.publishing.model_files import ReadModel
from sparring_serve.publishing.version_list import (
    chain_of,
    list_unreadable,
    list_versions,
    newest_full,
    versions_until,
)
from sparring_serve.publishing.version_names import next_name, place_version, version_name

__all__ = [
    "GateClosedError",
    "PublishResult",
    "PublisherOptions",
    "close_gate",
    "find_merge",
    "merge_layers",
    "pin",
    "publish_newest",
]

_log = logging.getLogger(__name__)

_STALE_SECONDS = 3600.0
"""Age of staging folders, left by a publisher that was killed, after which they are removed."""
_MERGE_FACTOR, _MAX_LAYERS = 4, 60


class GateClosedError(SnapshotError):
    """The gate of the folder is closed; nothing was published."""


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """Options for writing serving snapshots.

    Args:
        quantize: Table → data type of stored rows; the name ``*`` applies to all other tables.
        full_every: At least one of this many serving snapshots is full; the others are deltas. A
            lookup reads all layers of a chain: 4 layers take 1.5 times as long as one, 16 take three
            times.
        max_delta_share: A full serving snapshot is written if the deltas of a chain have more rows
            than this share of its full serving snapshot, because servers keep both in memory.
        keep: Number of newest serving snapshots to keep, with all their bases.
        keep_steps: For each of these steps, the serving snapshot that `close_gate` would pin is also
            kept, as is a pinned one.
        merges_separately: The caller writes full serving snapshots with `merge_layers`, while deltas are
            published. `publish_newest` only writes one if the chain exceeds four times the limits.
    """

    quantize: Mapping[str, str]
    full_every: int = 4
    keep: int = 3
    max_delta_share: float = 0.25
    keep_steps: tuple[int, ...] = ()
    merges_separately: bool = False

    def __post_init__(self) -> None:
        for name, value, most in (("full_every", self.full_every, 32), ("keep", self.keep, 10**6)):
            least = 2 if name == "keep" else 1
            if not least <= value <= most:
                raise InvalidArgumentError(
                    f"publish: {name} must be {least} to {most:,}, found {value}"
                )
        if not self.max_delta_share >= 0:
            raise InvalidArgumentError(
                "publish: max_delta_share must be a number of at least 0, found "
                f"{self.max_delta_share}"
            )


@dataclass(frozen=True, slots=True)
class PublishResult:
    """A committed serving snapshot.

    Args:
        written: Description of the written snapshot.
        is_delta: Whether it is a delta over the previous one.
        removed: Names of removed serving snapshots.
        quality: Cost of quantization, if it was measured.
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
    read_model: ReadModel | None = None,
) -> PublishResult | None:
    """Publishes the newest snapshot of a run, unless it is already published with these data types.

    If it is published with other data types, a full serving snapshot is written next to it, with a
    number after its name; servers that start use that one. If the folder contains a later step, for
    example of an earlier run, the new version gets a higher generation, so that it is the newest.

    Args:
        run_url: URL of a snapshot, or of a folder of snapshots.
        out_url: URL of the folder of serving snapshots; created if it does not exist.
        options: Options for writing.
        quality: Measures the model before anything is published; None skips the measurement.
        read_model: Returns the parts of the model, see `find_model_reader`; None publishes only rows.

    Returns:
        None if the newest snapshot is already published.

    Raises:
        SnapshotError: There is no snapshot, or it is damaged; or it is already published, and a newer
            version as well.
        UnknownTableError: `quantize` contains a table that is not in the snapshot.
        InvalidArgumentError: A data type is unknown or not supported for the table, or the output is a
            file.
        GateClosedError: The gate of the folder is closed.
        MetricLossError: A metric is worse than allowed; nothing was published.
    """
    if Path(out_url).is_file():
        raise InvalidArgumentError(
            f"publish: the output {os.fspath(out_url)} is a file, expected a folder; choose another one"
        )
    gate = read_gate(out_url)
    if gate.is_closed:
        raise GateClosedError(
            f"{os.fspath(out_url)}: the gate is closed ({gate.reason or 'no reason'}), so nothing is "
            "published; to open it, run sparring publish --unpin --output with this folder"
        )
    snapshot = _snapshot_at(run_url)
    existing = list_versions(out_url)
    unreadable = list_unreadable(out_url, existing)
    out = os.fspath(out_url).rstrip("/")
    changes, damage, is_hidden = "", "", False
    done = [each for each in existing if existing[each].source.hash == snapshot.manifest_hash]
    if done:
        published = existing[done[-1]]
        quantize = _quantize(snapshot, published.tables_by_name, options.quantize)
        changes = _dtype_changes(published, quantize)
        if done[-1] == list(existing)[-1]:
            damage = describe_damage(out, chain_of(done[-1], existing), existing, hashes=False)
            # Readers reject the folder because of an unreadable version with a greater name.
            is_hidden = gate.pin != done[-1] and max(unreadable, default="") > done[-1]
        if not (changes or damage or is_hidden):
            if gate.pin != done[-1]:
                _check_is_newest(out, snapshot, done[-1], existing)
            _finish(out, published)
            return None
    generation, name = place_version(out, snapshot, existing, unreadable)
    base = _base(snapshot, existing, options)
    if base is not None:
        damage = describe_damage(out, chain_of(base, existing), existing)
        base = None if damage else base
    report = None
    if quality is not None:  # before the vectors of items are computed
        used = gate.pin or next(reversed(existing), "") or max(unreadable, default="")
        below = existing.get(done[-1] if done else base or "")
        report = _measure(
            quality, snapshot, options.quantize, below, existing.get(used, used or None)
        )
    if damage:  # and the model is not refused
        _log.warning("%s", damage)
    write_options = WriteOptions() if read_model is None else read_model(snapshot)
    write_options = replace(write_options, generation=generation)
    tables = {*snapshot.tables, *write_options.computed}
    quantize = _quantize(snapshot, tables, options.quantize)
    if done:
        # Tables without an entry keep their current data type.
        kept = {each.name: each.dtype for each in existing[done[-1]].tables if each.name in tables}
        quantize = kept | quantize
    url = f"{out}/{name}"
    written, is_delta = _write(
        snapshot, url, None if base is None else f"{out}/{base}", quantize, write_options
    )
    if changes:
        _log.warning(
            "%s/%s was published with table %s; it was published again as %s. Running servers keep "
            "their data types; restart them to use the new one",
            out, done[-1], changes, name,
        )  # fmt: skip
    _note_order(f"{url}, step {snapshot.step:,},", generation, existing, unreadable)
    update_gate(out, without_pin_of_gate)
    return PublishResult(written, is_delta, tuple(_retain(out, options)), report)


def _write(
    snapshot: Snapshot,
    url: str,
    base_url: str | None,
    quantize: Mapping[str, str],
    options: WriteOptions,
) -> tuple[sparring_packed.WriteResult, bool]:
    """Returns what was written, and whether it is a delta."""
    if base_url is not None:
        try:
            written = sparring_packed.write(
                snapshot.url, url, quantize=quantize, base=base_url, options=options
            )
        except InvalidArgumentError as error:
            _log.info("writing a full serving snapshot instead of a delta: %s", error)
        else:
            return written, True
    return sparring_packed.write(snapshot.url, url, quantize=quantize, options=options), False


def _note_order(
    published: str,
    generation: int,
    existing: Mapping[str, sparring_packed.ServingManifest],
    unreadable: Collection[str],
) -> None:
    """Logs a warning if a version has a higher generation than those before it."""
    newest = list(existing)[-1] if existing else ""
    if generation == (existing[newest].generation if newest else 0):
        return
    follows = f"{newest}, step {existing[newest].step:,}" if newest else "no readable version"
    damaged = max(unreadable, default="")
    why = (
        f"and the unreadable version {damaged}"
        if damaged > newest
        else "for example of an earlier run"
    )
    _log.warning(
        "%s follows %s, %s, and is the newest version now. Servers of releases without generations "
        "reject it; update them",
        published, follows, why,
    )  # fmt: skip


def _measure(
    quality: EvaluationCheck,
    snapshot: Snapshot,
    quantize: Mapping[str, str],
    base: sparring_packed.ServingManifest | None,
    served: sparring_packed.ServingManifest | str | None,
) -> EvaluationReport:
    # The tables of a delta have the data types of its base.
    inherited = {} if base is None else {each.name: each.dtype for each in base.tables}
    every = dict.fromkeys(snapshot.tables, quantize["*"]) if "*" in quantize else {}
    chosen = {**inherited, **every, **quantize}
    return quality.check(
        snapshot, {each: chosen[each] for each in snapshot.tables if each in chosen}, served
    )


def _check_is_newest(
    out: str,
    snapshot: Snapshot,
    name: str,
    existing: Mapping[str, sparring_packed.ServingManifest],
) -> None:
    """Raises if servers use another version than the one of a published snapshot.

    Args:
        out: folder of serving snapshots.
        snapshot: a published snapshot.
        name: name of its serving snapshot.
        existing: the serving snapshots in the folder, newest last.
    """
    newest = list(existing)[-1]
    if newest == name:
        return
    raise SnapshotError(
        f"publish: {snapshot.url}, step {snapshot.step:,}, is already published as {name}, but {out} "
        f"contains the newer version {newest}, step {existing[newest].step:,}, which servers use; to go "
        f"back to it, pin it: sparring publish --pin {name} --output {out}",
        url=snapshot.url,
    )


def _finish(out: str, published: sparring_packed.ServingManifest) -> None:
    """Removes the pin of the gate, if the publisher of a version was killed before it did so."""
    update_gate(
        out,
        lambda gate: without_pin_of_gate(gate) if published.published >= gate.since else gate,
    )


def find_merge(out_url: str | os.PathLike[str], options: PublisherOptions) -> str | None:
    """Returns the name of the newest serving snapshot, if `merge_layers` is due.

    Args:
        out_url: URL of the folder of serving snapshots.
        options: Options for writing.
    """
    existing = list_versions(out_url)
    if not existing:
        return None
    name = list(existing)[-1]
    chain = chain_of(name, existing)
    if newest_full(existing) != chain[-1] or not _is_long(chain, existing, options, 1):
        return None
    return name


def merge_layers(out_url: str | os.PathLike[str], name: str) -> sparring_packed.WriteResult:
    """Writes a full serving snapshot next to a delta, with the same rows and data types. It becomes the
    base of the next delta, which contains all changes since then.

    Args:
        out_url: URL of the folder of serving snapshots.
        name: Name of the delta.

    Raises:
        SnapshotError: A serving snapshot of the chain was removed, or is damaged.
    """
    out = os.fspath(out_url).rstrip("/")
    manifest = sparring_packed.read_manifest(f"{out}/{name}")
    first = version_name(manifest.generation, manifest.source.name)
    return sparring_packed.merge(f"{out}/{name}", f"{out}/{next_name(first, name)}")


def pin(out_url: str | os.PathLike[str], name: str) -> sparring_packed.Gate:
    """Makes the readers of a folder use one of its serving snapshots until `unpin`.

    Args:
        out_url: URL of the folder of serving snapshots.
        name: Name of the serving snapshot.

    Raises:
        InvalidArgumentError: There is no such serving snapshot.
        SnapshotError: It is damaged, or its bases do not exist.
    """
    existing = list_versions(out_url)
    missing = [each for each in chain_of(name, existing) if each not in existing]
    if missing:
        advice = f"use one of {', '.join(existing)}" if existing else "publish a version first"
        raise InvalidArgumentError(
            f"--pin {name}: {os.fspath(out_url)} does not contain the serving snapshot {missing[0]}; "
            f"{advice}"
        )
    return update_gate(
        out_url, lambda gate: replace(gate, pin=name, pinned_by="operator", since=time.time())
    )


def close_gate(
    out_url: str | os.PathLike[str],
    reason: str,
    good_step: int | None,
    bad_steps: Sequence[range] = (),
) -> sparring_packed.Gate:
    """Withholds newer versions, and pins the last good one unless the operator has pinned another.

    Args:
        out_url: URL of the folder of serving snapshots.
        reason: Reason for which the gate closes.
        good_step: The newest serving snapshot of the newest generation that is not after this step is
            pinned. If there is none, the newest of the generations before is pinned, because their
            steps are of other runs. None: none.
        bad_steps: Earlier steps whose serving snapshots are not pinned.
    """
    good = [] if good_step is None else versions_until(good_step, list_versions(out_url), bad_steps)

    def close(gate: sparring_packed.Gate) -> sparring_packed.Gate:
        gate = replace(gate, is_closed=True, reason=reason, since=time.time())
        if gate.pinned_by == "operator":
            return gate
        return replace(gate, pin=good[-1] if good else "", pinned_by="gate" if good else "")

    return update_gate(out_url, close)


def _snapshot_at(url: str | os.PathLike[str]) -> Snapshot:
    try:
        return open_snapshot(url)
    except SnapshotError as error:
        newest = latest_snapshot(url)
        if newest is None:
            raise SnapshotError(
                f"{url} is neither a snapshot ({error}) nor a folder with snapshots; set snapshots.url "
                "of the run, and train"
            ) from None
        return newest


def _quantize(
    snapshot: Snapshot, tables: Collection[str], given: Mapping[str, str]
) -> dict[str, str]:
    unknown = sorted(set(given) - set(tables) - {"*"})
    if unknown:
        raise UnknownTableError(
            f"publish: quantize contains table {unknown[0]!r}, which is not in snapshot {snapshot.url}; "
            f"use one of {', '.join(sorted(tables))}",
            table=unknown[0],
        )
    chosen = {name: given.get(name, given.get("*")) for name in tables}
    return {name: dtype for name, dtype in chosen.items() if dtype is not None}


def _dtype_changes(published: sparring_packed.ServingManifest, quantize: Mapping[str, str]) -> str:
    """Returns the tables that are published with other data types than in `quantize`; empty if there
    are none."""
    return ", ".join(
        f"{table.name!r} as {table.dtype}, not {quantize[table.name]}"
        for table in published.tables
        if quantize.get(table.name, table.dtype) != table.dtype
    )


def _base(
    snapshot: Snapshot,
    existing: Mapping[str, sparring_packed.ServingManifest],
    options: PublisherOptions,
) -> str | None:
    """Returns the base for a delta; None if a full serving snapshot is due."""
    if not existing:
        return None
    name = list(existing)[-1]
    hashes = [each.manifest_hash for each in snapshot.chain[1:]]
    full = newest_full(existing)
    if (
        full is not None
        and existing[full].source.hash in hashes
        and full not in chain_of(name, existing)
    ):
        name = full  # `merge_layers` has written it.
    if existing[name].source.hash not in hashes:
        return None
    chain = chain_of(name, existing)
    factor = _MERGE_FACTOR if options.merges_separately else 1
    if chain[-1] in existing and _is_long(chain, existing, options, factor):
        return None
    return name


def _is_long(
    chain: list[str],
    existing: Mapping[str, sparring_packed.ServingManifest],
    options: PublisherOptions,
    factor: int,
) -> bool:
    """Returns whether a chain has `factor` times the configured number of layers or share of rows."""
    *deltas, full = chain
    if len(chain) >= min(factor * options.full_every, _MAX_LAYERS):
        return True
    num_changed = sum(_num_keys(existing[each]) for each in deltas)
    return num_changed > factor * options.max_delta_share * _num_keys(existing[full])


def _num_keys(manifest: sparring_packed.ServingManifest) -> int:
    """Returns the number of rows and erased ids of one serving snapshot, over all tables."""
    return sum(each.num_keys for each in manifest.files if each.kind in ("rows", "erased"))


def _retain(out_url: str, options: PublisherOptions) -> list[str]:
    """Removes all except the newest serving snapshots, those of `keep_steps`, the pinned one, the newest
    full one, and their bases. Servers can still read mapped files."""
    existing = list_versions(out_url)
    names = [
        *list(existing)[-options.keep :],
        read_gate(out_url).pin,
        newest_full(existing) or "",
    ]
    for step in options.keep_steps:
        names += versions_until(step, existing)[-1:]
    kept = {each for name in names for each in chain_of(name, existing)}
    place = open_root(out_url)
    # Remove the newest first, so that no delta exists without its base.
    removed = [name for name in reversed(existing) if name not in kept]
    for name in removed:
        try:
            place.remove(name)
        except FileNotFoundError:
            pass  # The publisher of an interrupted run, which may end later, has removed it.
        except OSError as error:
            raise SnapshotIOError(
                f"cannot remove {name} from {out_url}: {error}; check the permissions of the folder, or "
                "increase --keep"
            ) from error
    try:
        place.remove_stale(_STALE_SECONDS)
    except OSError as error:
        _log.warning("staging folders in %s cannot be removed: %s", out_url, error)
    return removed
