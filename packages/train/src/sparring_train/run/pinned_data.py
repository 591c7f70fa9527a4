"""Agrees on the version of the data that all ranks of a run read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring import open_snapshot
from sparring.adapter import Coordinator
from sparring.contracts import Collective
from sparring.errors import SnapshotError
from sparring_train.config.run import RunConfig
from sparring_train.registered_kinds import data_kinds
from sparring_train.run.same_run import RUN
from sparring_train.run.snapshot_folder import list_candidates

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["pin_data"]


def pin_data(config: RunConfig, collective: Collective, manager: PluginManager) -> RunConfig:
    """Returns the configuration with the version of the data. All ranks call it.

    See `DataDescriptor.pin`.

    Raises:
        DataError: the data or their version do not exist.
        PluginError: a client library is not installed.
    """
    pin = data_kinds(manager)[config.data.kind].pin
    if pin is None:
        return config
    data = config.data
    error: Exception | None = None
    if collective.rank == 0:
        try:
            data = pin(config.data, _saved_section(config))
        except Exception as failure:
            error = failure
    Coordinator(collective, "finding the version of the data").agree(error)
    if collective.world_size > 1:
        text = data.model_dump_json().encode()
        first = collective.all_gather(np.frombuffer(text, np.uint8))[0].tobytes()
        data = type(data).model_validate(json.loads(first))
    if data == config.data:
        return config
    return config.model_copy(update={"data": data})


def _saved_section(config: RunConfig) -> Mapping[str, Any] | None:
    """Returns the section `data` of the newest readable snapshot from which the run resumes."""
    url = config.snapshots.url
    if url is None or not config.snapshots.resume:
        return None
    # Resuming reports snapshots that cannot be read.
    with suppress(SnapshotError):
        for each, reason in list_candidates(url):
            snapshot = open_snapshot(each) if not reason else None
            if snapshot is not None and RUN in snapshot.state_names(0):
                saved: Mapping[str, Any] | None = snapshot.state(RUN).values.get("data")
                return saved
    return None
