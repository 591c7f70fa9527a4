"""The tables of a layer, and the numbers by which ops identify them."""

from __future__ import annotations

import gc
import itertools
import secrets
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

from sparring import StepContainer
from sparring.adapter import TableDeclaration, TableGroup
from sparring.errors import InvalidArgumentError
from sparring_tf.lookup.lookup_numbers import LookupNumber
from sparring_tf.lookup.row_versions import (
    COMPUTED,
    RowVersion,
    VersionedWeight,
    get_version,
    record_change,
)

__all__ = ["TableAgent", "find_anchors"]

_agents: weakref.WeakKeyDictionary[StepContainer, weakref.WeakValueDictionary[int, TableAgent]] = (
    weakref.WeakKeyDictionary()
)
"""Agents that have joined a container, in this order."""
_numbers = itertools.count()


def find_anchors(container: StepContainer) -> list[Any]:
    """Returns the anchors of all layers whose tables are in `container`."""
    return [anchor for each in _find_agents(container) for anchor in each.anchors.values()]


def _find_agents(container: StepContainer) -> list[TableAgent]:
    joined = list(_agents[container].values()) if container in _agents else []
    return [each for each in joined if each.is_in(container)]


class TableAgent(TableGroup):
    """The tables of a layer, their container, and the numbers by which ops identify them.

    Args:
        declarations: the layer's tables.
        pooled: table and pooling of each feature, for each group of features that are pooled together.
        container: the container of the tables. By default, the `Optimizer` creates it.
        shared: whether other layers may have the same tables.
    """

    def __init__(
        self,
        declarations: Sequence[TableDeclaration],
        pooled: Sequence[Sequence[tuple[str, str]]] = (),
        container: StepContainer | None = None,
        *,
        shared: bool = False,
    ) -> None:
        self.shared = shared
        self._single = {
            each.table.name: LookupNumber(self, [(each.table.name, "sum")]) for each in declarations
        }
        self._pooled = [LookupNumber(self, features) for features in pooled]
        self._is_shown = False
        self._owner = secrets.token_hex(8)
        self._refusals: dict[str, str] = {}
        """Table name → reason why its rows do not match the dense weights."""
        self.anchors: dict[str, Any] = {}
        """Table name → the weight that receives the gradients of its rows."""
        super().__init__(declarations, container)

    def join(self, container: StepContainer) -> None:
        """See `TableGroup.join`.

        Raises:
            InvalidArgumentError: see `TableGroup.join`; or another layer in the container has a table of
                the same name, and none of both is shared.
        """
        if self.is_in(container):
            return
        if self._find_namesakes(container):
            gc.collect()  # a layer that was replaced, for example in a notebook
        namesakes = self._find_namesakes(container)
        if namesakes:
            raise InvalidArgumentError(
                f"tables {', '.join(namesakes)}: found two layers with a table of this name, which would "
                "use the same rows, while layers of Keras have separate ones. Give one of them another "
                "name, call one layer twice, or create a layer with shared=True if both should use the "
                "same rows",
                tables=namesakes,
            )
        super().join(container)
        _agents.setdefault(container, weakref.WeakValueDictionary())[next(_numbers)] = self

    def _find_namesakes(self, container: StepContainer) -> list[str]:
        """Returns the tables that another layer in a container has and does not share."""
        others = [] if self.shared else _find_agents(container)
        names = {name for each in others if not each.shared for name in each.table_names}
        return sorted(names.intersection(self.table_names))

    def is_in(self, container: StepContainer) -> bool:
        """Whether `container` contains the tables."""
        return self._container is container

    def _on_joined(self, declarations: Sequence[TableDeclaration]) -> None:
        self._is_shown = False

    def is_direct(self, tables: Sequence[str]) -> bool:
        """Whether ops can read `tables` without communication with other ranks.

        Raises:
            ClosedError: the container or the storage of a table was closed.
        """
        container = self.container
        container.check_readable(tables)
        self.check_versions()
        if not self._is_shown:
            self._show()
        return container.reads_directly(tables)

    def _show(self) -> None:
        for each in self.numbers:
            each.publication.show(self.container.collection(each.features))
        self._is_shown = True

    # -- whether rows and dense weights match

    def with_version(self, table: str, values: Any) -> VersionedWeight:
        """Returns the value of a table's anchor with the version of its rows."""
        return VersionedWeight.of(values, self._version(table), self._owner_of(table))

    def on_weights_set(self, table: str, values: Any) -> None:
        """Compares weights that Keras sets with the rows. Later lookups fail if the weights are older.

        A value of another layer's anchor does not change the rows and causes a warning.

        Raises:
            InvalidArgumentError: the value is a result of arithmetic.
        """
        wanted, current = getattr(values, "version", None), self._version(table)
        if wanted == COMPUTED:
            self.reject_values(table, "a result of arithmetic with get_weights")
        owner, own = getattr(values, "owner", ""), self._owner_of(table)
        if wanted is None or owner != own:
            has_equal_rows = owner.partition("/")[2] == own.partition("/")[2]
            if wanted is None or wanted.number or current.number or not has_equal_rows:
                warnings.warn(
                    f"set_weights: get_weights does not contain rows, so the rows of table {table!r} "
                    "are unchanged; to copy a model with its rows, use model.save_weights("
                    "'….weights.h5') and load_weights",
                    stacklevel=4,
                )
            return
        if wanted.number == current.number:
            self.accept_rows([table])
            return
        since = " and have been loaded since" if wanted.step == current.step else ""
        self._refusals[table] = (
            f"set_weights: the dense weights are from step {wanted.step}, but the rows of table "
            f"{table!r} are from step {current.step}{since}, because get_weights does not contain "
            "rows. Restore the rows too: use sparring_tf.EarlyStopping(…) instead of Keras's, or "
            "model.load_weights(…) of a file that ModelCheckpoint saved at that step; to set only "
            "dense weights, assign those for which sparring_tf.trained_table is None"
        )
        for each in self.numbers:
            each.publication.refuse(self._refusals[table])

    def reject_values(self, table: str, found: str) -> NoReturn:
        """Rejects a value from which it is not known which rows belong to it.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError(
            f"assign: found {found} for the anchor of table {table!r}, which has no elements, so rows "
            "do not change. Assign only variables for which sparring_tf.trained_table is None. To "
            f"change rows, as of a target network, call optimizer.container.assign({table!r}, ids, rows) "
            f"for the ids in container.storage({table!r}).scan(); to return to an earlier step, load a "
            "file of that step with model.load_weights",
            table=table,
        )

    def check_versions(self) -> None:
        """Raises an error while the dense weights are older than the rows.

        Raises:
            InvalidArgumentError: the dense weights are older than the rows.
        """
        if self._refusals:
            raise InvalidArgumentError(next(iter(self._refusals.values())))

    def on_rows_replaced(self, table: str) -> None:
        """Records that rows were loaded that match the current dense weights."""
        record_change(self.container, [table])
        # Of calls before the load.
        self.container.resources.drop(table)
        self.accept_rows([table])

    def warn_about_unfinished_step(self, table: str) -> None:
        """Warns, before rows are saved, that gradients of an unfinished step are not saved."""
        if self.container.resources.has_gradient(table):
            warnings.warn(
                f"save of table {table!r}: it is between calls of a step with "
                "gradient_accumulation_steps, whose gradients of rows are not saved; after loading, this "
                "step starts again. Save after a multiple of gradient_accumulation_steps calls",
                stacklevel=3,
            )

    def accept_rows(self, tables: Sequence[str]) -> None:
        """Allows lookups in `tables`, because their rows match the dense weights."""
        refused = [self._refusals.pop(table, None) for table in tables]
        if any(refused) and not self._refusals:
            self._show()

    def _owner_of(self, table: str) -> str:
        """Returns ``token/what initial rows depend on``."""
        (own,) = (each.table for each in self.declarations if each.table.name == table)
        return f"{self._owner}/{table} {own.dim} {own.dtype} {own.seed} {own.initializer!r}"

    def _version(self, table: str) -> RowVersion:
        # Reading the container would create one.
        return get_version(self.container, table) if self.has_container else RowVersion()

    @property
    def numbers(self) -> list[LookupNumber]:
        """Numbers of all tables and groups that ops of this layer look up in."""
        return [*self._single.values(), *self._pooled]

    def number(self, table: str) -> Any:
        """Returns the number of a table for `lookup_ops.gather`, as a tensor in the current context."""
        return self._single[table].tensor()

    @property
    def pooled_features(self) -> list[tuple[str, str]]:
        """Table and pooling of each pooled feature."""
        return [feature for number in self._pooled for feature in number.features]

    def pooled_number(self, group: int) -> Any:
        """Returns the number of a group of features for `lookup_ops.pool`."""
        return self._pooled[group].tensor()
