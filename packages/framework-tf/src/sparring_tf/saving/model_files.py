"""`save_model`: atomically saves a Keras file and its rows, with any number of ranks."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sparring import StepContainer
from sparring.adapter import Coordinator
from sparring.contracts import Collective
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.saving import saved_rows
from sparring_tf.saving.anchors import trained_table
from sparring_tf.saving.sidecar import SidecarSave, use_prepared_save

__all__ = ["save_model"]

_WEIGHTS, _MODEL = ".weights.h5", ".keras"


def save_model(
    model: Any, filepath: str | os.PathLike[str], *, max_bytes_inside: int | None = None
) -> None:
    """Saves a Keras model with the rows of its tables, for `keras.models.load_model`.

    In contrast to `model.save`, an existing file is only replaced after the new one is complete, and rows
    may be on several ranks. All ranks call it, and rank 0 writes the file. If each rank has a separate
    container, the rows of rank 0 are saved. Rows are stored in the file; if a container has several
    ranks, or a table exceeds `max_bytes_inside`, they are stored in a snapshot in the folder
    ``<filepath>.rows``. Copy this folder together with the file. It also contains the snapshot of the
    previous save; older snapshots are removed.

    Args:
        model: a built model, with or without tables.
        filepath: ``….keras``, or ``….weights.h5`` for only the weights. All ranks must have access to it.
        max_bytes_inside: maximum size of a table's rows in the file. Defaults to 1 GiB.

    Raises:
        InvalidArgumentError: the file name has the wrong suffix, or the ranks pass different paths.
        UnsupportedError: the path is not on a file system of this machine, or a layer's storage is an
            open `Storage`, not the name of a backend.
        SnapshotError, OSError: the file system failed on this or another rank.
        SparringError: a concurrent load or lookup failed; nothing was written.
    """
    path = _validate_path(filepath)
    limit = saved_rows.MAX_BYTES if max_bytes_inside is None else max_bytes_inside
    containers = _containers(model)
    widest = max(containers, key=lambda each: each.collective.world_size, default=None)
    collective = None if widest is None else widest.collective
    # A concurrent load or lookup may be using the same collective.
    _call_on_all_ranks(collective, f"save of {path}", lambda: _join(containers))
    if collective is None or collective.world_size == 1:
        save = SidecarSave(path)
    else:
        Coordinator(collective, f"save of {path}").all_equal(
            {"path": str(path)},
            "ranks save a model to different paths",
            "pass the same on all ranks",
        )
        save = _first_save(path, collective)
    _write(model, containers, save, limit, collective)


def _validate_path(filepath: str | os.PathLike[str]) -> Path:
    text = os.fspath(filepath)
    if not text.endswith((_WEIGHTS, _MODEL)):
        raise InvalidArgumentError(
            f"save_model: the file name must end in {_MODEL} or {_WEIGHTS}, found {text!r}"
        )
    if "://" in text:
        raise UnsupportedError(
            f"save_model: {text!r} is not on a file system of this machine, which is required to "
            "replace a file atomically; save to a local path and copy the file with its folder of rows"
        )
    return Path(text).absolute()


def _containers(model: Any) -> list[StepContainer]:
    """Returns the containers of the tables of a model, in the same order on all ranks."""
    trained = filter(None, map(trained_table, model.weights))
    return list(dict.fromkeys(each.agent.container for each in trained))


def _join(containers: Sequence[StepContainer]) -> None:
    for container in containers:
        container.quiesce()


def _call_on_all_ranks(collective: Collective | None, what: str, call: Callable[[], None]) -> None:
    """Runs a function on each rank. All ranks call it, and all raise an error if one fails."""
    error: Exception | None = None
    try:
        call()
    except Exception as failure:
        if collective is None:
            raise
        error = failure
    if collective is not None:
        Coordinator(collective, what).agree(error)


def _call_on_first_rank(collective: Collective | None, what: str, call: Callable[[], None]) -> None:
    """Runs a function on the first rank. All ranks call it and wait, and raise an error if it fails."""
    if collective is None:
        call()
        return
    coordinator = Coordinator(collective, what)
    coordinator.start()
    error: Exception | None = None
    try:
        if collective.rank == 0:
            call()
    except Exception as failure:
        error = failure
    except BaseException as reason:
        coordinator.abort(reason)
        raise
    coordinator.agree(error)


def _first_save(path: Path, collective: Collective) -> SidecarSave:
    """Creates the save on each rank, with the number that the first rank determined."""
    saves: list[SidecarSave] = []
    _call_on_first_rank(collective, f"save of {path}", lambda: saves.append(SidecarSave(path)))
    mine = saves[0].number if saves else 0
    told = collective.all_gather(np.array([mine], np.int64))
    return SidecarSave(path, int(told[0][0]))


def _write(
    model: Any,
    containers: Sequence[StepContainer],
    save: SidecarSave,
    limit: int,
    collective: Collective | None,
) -> None:
    def write_large(container: StepContainer, place: int) -> None:
        if _max_bytes(container) > limit:
            save.write(container, place)

    def write_model() -> None:
        with use_prepared_save(save):
            _write_file(model, save.path)
        save.remove_older()

    what = f"save of {save.path}"
    for place, container in enumerate(containers):
        # Separately, so that after a failure no rank waits for others in the next save.
        if container.collective.world_size > 1:
            _call_on_all_ranks(collective, what, partial(save.write, container, place))
        else:
            _call_on_first_rank(collective, what, partial(write_large, container, place))
    _call_on_first_rank(collective, what, write_model)


def _max_bytes(container: StepContainer) -> int:
    """Returns the size of the rows of the largest table on this rank."""
    sizes = (saved_rows.num_row_bytes(container, table) for table in container.tables)
    return max(sizes, default=0)


def _write_file(model: Any, path: Path) -> None:
    """Writes a temporary file, which then replaces `path`."""
    ending = _WEIGHTS if path.name.endswith(_WEIGHTS) else _MODEL
    staged = path.with_name(f".{path.name}.{secrets.token_hex(4)}{ending}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write = model.save_weights if ending == _WEIGHTS else model.save
        write(str(staged))
        _sync(staged)
        staged.replace(path)
        _sync(path.parent)
    finally:
        staged.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
