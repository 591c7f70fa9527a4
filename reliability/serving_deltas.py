"""Deltas of a served folder lost, reordered, repeated or damaged: each is rejected or correct.

A run with two tables is published as full snapshots and deltas, and so is another run with the same names
and different rows. Each trial copies serving snapshots to the folder of a server one after another: some
are omitted, some arrive early, twice, under another name, from the other run under the name of this one,
or with a flipped bit or a truncated or missing file. After each, the server polls for a newer version.
Its replies must equal one published version bit for bit, never an earlier one than before. Versions that
it does not load are counted as rejected; a version that is complete, with all its bases, must be loaded.
Every second trial uses the native server, if it was built.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sparring_packed
from reliability.report import Report
from reliability.small_snapshots import scratch_folder
from sparring import SaveOptions, StepContainer, StorageChoice
from sparring.contracts import TableConfig
from sparring_serve import (
    ClientConfig,
    LookupClient,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
)
from sparring_serve.metrics import ServingMetrics
from sparring_serve.publishing.publisher import PublisherOptions, publish_newest
from sparring_serve.server.native_front_end import EXECUTABLE
from sparring_serve.server.refresher import Refresher
from sparring_serve.tables.packed import open_packed_tables
from sparring_serve.testing.front_ends import Folder, call, open_front_end, read_metrics
from sparring_serve.wire.fields import decode
from sparring_serve.wire.messages import (
    SERVICE,
    Missing,
    PullReply,
    PullRequest,
    RowDtype,
    TableIds,
)

__all__ = ["TRIALS", "run"]

TRIALS = 1_000

_TABLES = (TableConfig("item", 4, seed=3), TableConfig("user", 2, initializer="zeros"))
_KEYS = np.arange(-5, 120, dtype=np.int64)
"""Some of these keys never have a row."""
_VERSIONS = 9
_FULL_EVERY = 5

_PLACE = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))


def run(trials: int) -> Report:
    """Runs trials; each draws the fault of each version."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    # Rejections are logged, and here thousands are expected.
    logging.getLogger("sparring_serve").setLevel(logging.ERROR)
    try:
        with scratch_folder(in_memory=True) as folder:
            ours = _published(folder / "ours", 1)
            theirs = _published(folder / "theirs", 2)
            kinds = [_python_server, *([_native_server] if EXECUTABLE.exists() else [])]
            for trial in range(trials):
                place = folder / "served"
                opened = kinds[trial % len(kinds)]
                counts[f"trials of {opened.__name__.strip('_')}"] += 1
                for wrong in _trial(random.Random(trial), ours, theirs, place, counts, opened):
                    failures.append(f"trial {trial}: {wrong}")
                shutil.rmtree(place)
    finally:
        logging.getLogger("sparring_serve").setLevel(logging.NOTSET)
    return Report(trials, dict(sorted(counts.items())), failures)


@dataclass(frozen=True, slots=True)
class _Version:
    path: Path
    step: int
    hash: str
    base: str
    """Name of its base, or empty."""
    rows: bytes
    """Replies for all keys of all tables, from intact files."""


def _published(folder: Path, seed: int) -> list[_Version]:
    """Publishes a run whose rows change and are erased from step to step."""
    generator = np.random.default_rng(seed)
    versions = []
    with StepContainer() as container:
        for table in _TABLES:
            container.declare(table, StorageChoice("memory"))
        for step in range(1, _VERSIONS + 1):
            for table in _TABLES:
                keys = generator.choice(100, 100 if step == 1 else 20, replace=False)
                rows = generator.normal(size=(len(keys), table.dim)).astype(np.float32)
                container.assign(table.name, keys, rows)
                if step > 1:
                    container.storage(table.name).erase(generator.choice(100, 5, replace=False))
            is_full = step % _FULL_EVERY == 1
            base = None if is_full else f"{folder}/run/step-{step - 1}"
            container.counters.steps = step
            container.save(
                f"{folder}/run/step-{step}", base=base, options=SaveOptions(is_base=True)
            )
            options = PublisherOptions({}, full_every=32, keep=99, max_delta_share=9.0)
            publish_newest(f"{folder}/run/step-{step}", f"{folder}/served", options)
            path = folder / f"served/step-{step}"
            manifest = sparring_packed.read_manifest(path)
            with sparring_packed.open(path) as tables:
                pulled = tables.pull({table.name: _KEYS for table in _TABLES})
            content = b"".join(
                part.tobytes()
                for table in _TABLES
                for part in (pulled.rows[table.name], pulled.found[table.name])
            )
            name = "" if manifest.base is None else manifest.base.name
            versions.append(_Version(path, step, manifest.hash, name, content))
    return versions


def _trial(
    draw: random.Random,
    ours: list[_Version],
    theirs: list[_Version],
    served: Path,
    counts: Counter[str],
    opened: Callable[[Path], AbstractContextManager[_Server]],
) -> Iterator[str]:
    """Yields violated promises."""
    served.mkdir()
    _deliver(ours[0], served, ours[0].path.name)
    known = {each.hash: each for each in (*ours, *theirs)}
    with opened(served) as server:
        # Names of snapshots of this run that are present and intact.
        whole = {ours[0].path.name}
        last = ours[0].step
        for what, version, other in _deliveries(draw, ours, theirs):
            counts[what] += 1
            if what == "lost":
                continue
            _arrive(draw, what, version, other, served, whole)
            refused = server.num_refused()
            result = server.refresh()
            seen = f"{what} of step {version.step}"
            answered = known.get(server.version())
            if answered is None or server.rows() != answered.rows:
                yield f"{seen}: the replies are not from a published version"
                return
            if answered.step < last:
                yield f"{seen}: replies of step {answered.step} after those of step {last}"
            is_counted = server.num_refused() == refused + 1
            if bool(result.refused) != is_counted:
                yield f"{seen}: a rejection is not counted"
            counts["looks: taken" if result.is_new else "looks: refused"
                   if result.refused else "looks: unchanged"] += 1  # fmt: skip
            newest = max((each for each in ours if each.path.name in whole), key=lambda v: v.step)
            is_due = newest.step > last and _has_chain(newest, ours, whole, answered)
            if is_due and answered.step < newest.step and not result.refused:
                yield f"{seen}: step {newest.step} is complete, but neither loaded nor rejected"
            if what == "damaged" and not _is_spare(served, version):
                if answered.hash == version.hash:
                    yield f"{seen}: it is served"
                is_newest = version.path.name == max(each.name for each in served.glob("step-*"))
                if is_newest and not result.refused:
                    yield f"{seen}: it is ignored silently"
            last = answered.step


def _deliveries(
    draw: random.Random, ours: list[_Version], theirs: list[_Version]
) -> Iterator[tuple[str, _Version, _Version]]:
    """Yields the fault of each version, the version, and that of the other run, in order of arrival."""
    late: list[int] = []
    for place in range(1, len(ours)):
        what = draw.choice(["whole", "whole", "lost", "late", "repeated", "damaged", "foreign"])
        if what == "late":
            late.append(place)
            continue
        yield what, ours[place], theirs[place]
        while late and draw.random() < 0.5:
            index = late.pop(draw.randrange(len(late)))
            yield "late", ours[index], theirs[index]
    for index in late:
        yield "late", ours[index], theirs[index]


def _arrive(
    draw: random.Random,
    what: str,
    version: _Version,
    other: _Version,
    served: Path,
    whole: set[str],
) -> None:
    name = version.path.name
    if what == "foreign":
        # As if two runs published to one folder.
        _deliver(other, served, name)
        return
    _deliver(version, served, name, draw if what == "damaged" else None)
    if what != "damaged":
        whole.add(name)
    if what == "repeated":
        _deliver(version, served, f"again-{name}")


def _deliver(
    version: _Version, served: Path, name: str, damage: random.Random | None = None
) -> None:
    """Copies a serving snapshot and renames it to its final name, as its writer does."""
    staged = served / f".{name}"
    shutil.copytree(version.path, staged)
    if damage is not None:
        _damage(damage, staged)
    staged.rename(served / name)


def _damage(draw: random.Random, folder: Path) -> None:
    path = draw.choice(sorted(folder.iterdir()))
    kind = draw.choice(["bit", "bit", "cut", "missing"])
    if kind == "missing" and path.name != "manifest.json":
        path.unlink()
        return
    content = bytearray(path.read_bytes())
    if kind == "cut":
        del content[draw.randrange(len(content)) :]
    else:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.chmod(0o644)
    path.write_bytes(content)


def _is_spare(served: Path, version: _Version) -> bool:
    """Returns whether all files are intact, except Bloom filters, which a server does not read."""
    return all(
        (served / version.path.name / each.name).is_file()
        and (served / version.path.name / each.name).read_bytes() == each.read_bytes()
        for each in version.path.iterdir()
        if each.suffix != ".bloom"
    )


def _has_chain(
    version: _Version, ours: list[_Version], whole: set[str], answered: _Version
) -> bool:
    """Returns whether a version and all its bases are present, or already served."""
    by_name = {each.path.name: each for each in ours}
    while version.hash != answered.hash:
        if version.path.name not in whole:
            return False
        if not version.base:
            return True
        version = by_name[version.base]
    return True


@dataclass(frozen=True, slots=True)
class _Server:
    """What a trial asks a server.

    Attributes:
        refresh: looks for a newer version; returns an object with `is_new` and `refused`.
        version: returns the hash of the newest version.
        rows: returns the replies for all keys of all tables.
        num_refused: returns the number of rejected versions in the metrics.
    """

    refresh: Callable[[], Any]
    version: Callable[[], str]
    rows: Callable[[], bytes]
    num_refused: Callable[[], float]


@contextmanager
def _python_server(served: Path) -> Iterator[_Server]:
    """Creates the objects of the server in Python, without a port."""
    metrics = ServingMetrics()
    tables = open_packed_tables(ServingConfig(snapshots=str(served)), _PLACE)
    refresher = Refresher(tables, metrics, poll_seconds=None)

    def rows() -> bytes:
        asked = [(table.name, _KEYS) for table in _TABLES]
        looked = tables.lookup(asked, RowDtype.FLOAT32, Missing.INITIAL, "")
        return b"".join(
            part.tobytes() for each in looked.tables for part in (each.rows, each.found)
        )

    try:
        yield _Server(
            refresher.refresh,
            lambda: tables.versions()[0].hash,
            rows,
            lambda: metrics.value("refreshes_total", result="refused"),
        )
    finally:
        refresher.close()
        tables.close()


@contextmanager
def _native_server(served: Path) -> Iterator[_Server]:
    """Starts the native server, as the tests of sparring-serve do."""
    folder = Folder(served.parent / "native")
    folder.served = str(served)
    with (
        open_front_end("native", folder, _PLACE, verify="all", poll_seconds=3600) as server,
        LookupClient(server.address, ClientConfig(deadline_seconds=9.0)) as client,
    ):

        def rows() -> bytes:
            pulled = client.pull({table.name: _KEYS for table in _TABLES})
            return b"".join(
                part.tobytes()
                for table in _TABLES
                for part in (pulled.rows[table.name], pulled.found[table.name])
            )

        yield _Server(
            server.refresh,
            lambda: _newest(server.address),
            rows,
            lambda: read_metrics(server).get('refreshes_total{result="refused"}', 0),
        )


def _newest(address: str) -> str:
    """Returns the hash of the newest version of a server."""
    content = call(address, f"{SERVICE}/Pull", PullRequest((TableIds(_TABLES[0].name),)))[3]
    reply: PullReply = decode(PullReply, content)
    return reply.newest
