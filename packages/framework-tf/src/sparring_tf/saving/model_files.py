"""`save_model`: a file of Keras and its rows, whole or not at all, of any number of ranks."""

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
    """Saves a model of Keras with the rows of its tables, for `keras.models.load_model`.

    What `model.save` does, and more: an older file stays as it is until the new one is whole, and rows
    may lie on several ranks. All ranks call it, and rank 0 writes the file; where each rank has a
    container of its own, the rows of rank 0. Rows go into the file; where a container has several
    ranks, or a table more bytes than `max_bytes_inside`, into a snapshot in the folder
    ``<filepath>.rows`` next to it. A copy of the file needs a copy of that folder. The snapshot of the
    save before stays there too, older ones go.

    Args:
        model: built; its layers hold tables, or none.
        filepath: ``….keras``, or ``….weights.h5`` for the weights alone; all ranks reach it.
        max_bytes_inside: rows of a table that the file holds; None: 1 GiB.

    Raises:
        InvalidArgumentError: another ending; ranks were given different paths.
        UnsupportedError: the path is of another machine; a layer's storage was given open.
        SnapshotError, OSError: the file system failed, here or on another rank.
        SparringError: a concurrent load or lookup failed; nothing was written.
    """
    path = _validate_path(filepath)
    limit = saved_rows.MAX_BYTES if max_bytes_inside is None else max_bytes_inside
    containers = _containers(model)
    widest = max(containers, key=lambda each: each.collective.world_size, default=None)
    collective = None if widest is None else widest.collective
    # A concurrent load or lookup may meet other ranks by the same collective.
    _call_on_all_ranks(collective, f"save of {path}", lambda: _join(containers))
    if collective is None or collective.world_size == 1:
        save = SidecarSave(path)
    else:
        Coordinator(collective, f"save of {path}").all_equal(
            {"path": str(path)}, "ranks save a model to different paths", "give all ranks the same"
        )
        save = _first_save(path, collective)
    _write(model, containers, save, limit, collective)


def _validate_path(filepath: str | os.PathLike[str]) -> Path:
    text = os.fspath(filepath)
    if not text.endswith((_WEIGHTS, _MODEL)):
        raise InvalidArgumentError(
            f"save_model: a file of Keras ends in {_MODEL} or {_WEIGHTS}, found {text!r}"
        )
    if "://" in text:
        raise UnsupportedError(
            f"save_model: {text!r} is no path on a file system of this machine, where a file can "
            "replace another as a whole; save to one and copy it, with its folder of rows"
        )
    return Path(text).absolute()


def _containers(model: Any) -> list[StepContainer]:
    """Where the tables of a model live, in an order that all ranks have."""
    trained = filter(None, map(trained_table, model.weights))
    return list(dict.fromkeys(each.agent.container for each in trained))


def _join(containers: Sequence[StepContainer]) -> None:
    for container in containers:
        container.quiesce()


def _call_on_all_ranks(collective: Collective | None, what: str, call: Callable[[], None]) -> None:
    """Does on each rank its own share. All ranks call it, and are told of one that fails."""
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
    """Does it on the first rank, as long as it takes. All ranks call it, and are told if it fails."""
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
    """The save of the first rank, whose number holds for all."""
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
        # One by one: a rank that fails must not leave others alone in the next.
        if container.collective.world_size > 1:
            _call_on_all_ranks(collective, what, partial(save.write, container, place))
        else:
            _call_on_first_rank(collective, what, partial(write_large, container, place))
    _call_on_first_rank(collective, what, write_model)


def _max_bytes(container: StepContainer) -> int:
    """Of the rows of its largest table on this rank."""
    sizes = (saved_rows.num_row_bytes(container, table) for table in container.tables)
    return max(sizes, default=0)


def _write_file(model: Any, path: Path) -> None:
    """Through a file of another name, which then takes the place."""
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
