"""One shard of tables that learn: an engine of one rank over the partitions of the shard."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring import ApartRendezvous, Columns, StepContainer, dedup, initial_rows
from sparring.contracts import HyperParameters, MethodChoice
from sparring.errors import PartialStepError
from sparring_serve.parameters.declaration import ParametersConfig
from sparring_serve.parameters.push_window import PushWindows, Token, Verdict
from sparring_serve.service import Place
from sparring_serve.tables import (
    Found,
    Ids,
    Looked,
    TableShape,
    Version,
    VersionGoneError,
    initial_values,
)
from sparring_serve.wire.messages import Missing, ParametersMessage, RowDtype, TableMethod

__all__ = ["Gradients", "ParameterShard"]


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of one table in a push."""

    table: str
    ids: Ids
    gradients: npt.NDArray[np.float32]
    """``(n, dim)``, finite unless those are to be skipped."""
    hyper: HyperParameters


class ParameterShard:
    """Tables that are pulled from and pushed to. Any thread may call any method; they take turns.

    It fulfils `ServingTables`; what it serves is one version that changes with each push, and has
    no hash.

    Args:
        config: the tables.
        place: whose shard this is.
    """

    def __init__(self, config: ParametersConfig, place: Place) -> None:
        self.config, self.place = config, place
        self._turn = threading.Lock()
        self._steps = dict.fromkeys(config.tables, 0)
        self.windows = PushWindows(config.most_clients)
        self._container = StepContainer(
            rendezvous=ApartRendezvous(place.shard, place.shards.num_shards),
            non_finite_gradients=config.non_finite_gradients,
        )
        try:
            for name, each in config.tables.items():
                table, method = each.table(name), each.method
                self._container.declare(table, each.storage_choice)
                state = method.initial_state(
                    table.dim, each.hyper_parameters, table.computing_dtype
                )
                self._container.set_state(name, state, method.name)
                self._container.storage(name)
        except BaseException:
            self._container.close()
            raise

    @property
    def steps(self) -> int:
        """Pushes that were applied."""
        return self._container.counters.steps

    def describe(self) -> ParametersMessage:
        """Methods of the tables, and what clients check before they push."""
        methods = (
            TableMethod(name, each.update_method, each.hyper_parameters.model_dump_json())
            for name, each in self.config.tables.items()
        )
        return ParametersMessage(
            tuple(methods), self.config.non_finite_gradients, self.config.save_seconds
        )

    # -- as ServingTables

    def shapes(self) -> Mapping[str, TableShape]:
        return {
            name: TableShape(
                name, each.dim, each.dtype, self._container.num_rows(name), initial_values(each)
            )
            for name, each in self._container.tables.items()
        }

    def versions(self) -> Sequence[Version]:
        return [Version("", self.steps, "", time.time())]

    def lookup(
        self, asked: Sequence[tuple[str, Ids]], dtype: RowDtype, missing: Missing, version: str
    ) -> Looked:
        if version:
            raise VersionGoneError(
                f"version {version} was asked for, but these tables learn, and no version of them is "
                "kept; set client.consistency=newest, or pull from servers of the role inference"
            )
        with self._turn:
            found = [self._found(table, ids, missing) for table, ids in asked]
            return Looked(self.versions()[0], found)

    def _found(self, name: str, ids: Ids, missing: Missing) -> Found:
        config = self.config.tables[name]
        if not len(ids):
            return Found(np.empty((0, config.dim), np.float32), np.empty(0, np.bool_))
        once = dedup(ids)
        result = self._container.storage(name).find(once.keys, Columns(0, config.dim))
        rows = result.rows.astype(np.float32, copy=False)
        unseen = np.flatnonzero(~result.found)
        if missing == Missing.INITIAL and len(unseen):
            table = self._container.tables[name]
            rows[unseen] = initial_rows(once.keys[unseen], table)
        if len(once.keys) == len(ids):
            # Keys come in the order of ids where none repeats.
            return Found(rows, result.found)
        return Found(rows[once.inverse], result.found[once.inverse])

    def refresh(self) -> bool:
        return False

    def figures(self) -> Mapping[str, float]:
        counters = self._container.counters
        return {
            "pushed_steps": float(counters.steps),
            "rows_updated": float(counters.rows_updated),
            "gradients_not_admitted": float(counters.gradients_not_admitted),
        }

    def close(self) -> None:
        with self._turn:
            self._container.close()

    # -- changes

    def apply(self, token: Token, pushed: Sequence[Gradients]) -> bool:
        """Applies a push, unless it was applied before.

        Returns:
            Whether its rows have changed now.

        Raises:
            SparringError: as `StepContainer.apply_methods`; no row has changed, but where it is a
                `PartialStepError`.
        """
        with self._turn:
            if self.windows.verdict(token) != Verdict.NEW:
                return False
            choices = {}
            for each in pushed:
                self._container.resources.give(each.table, each.ids, each.gradients)
                method = self.config.tables[each.table].method
                choices[each.table] = MethodChoice(method, each.hyper, self._steps[each.table] + 1)
            try:
                self._container.apply_methods(choices)
            except PartialStepError:
                self.windows.add_part(token)
                raise
            for each in pushed:
                self._steps[each.table] += 1
            self.windows.add(token)
            return True

    def flush(self) -> None:
        """Makes what pushes have written as durable as the storages can."""
        with self._turn:
            self._container.flush(blocking=True)
