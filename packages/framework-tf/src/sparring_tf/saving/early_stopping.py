"""`EarlyStopping`: Keras's callback, which also restores the rows of the best epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from sparring.adapter import Coordinator
from sparring.errors import UnsupportedError
from sparring_tf.lookup.row_versions import RowVersion, get_version, set_version
from sparring_tf.saving import saved_rows
from sparring_tf.saving.anchors import TrainedTable, trained_table
from sparring_tf.saving.saved_rows import TableRows, gather_rows, replace_rows

__all__ = ["EarlyStopping"]


@dataclass(frozen=True, slots=True)
class _KeptRows:
    """Rows of a table on this rank at the best epoch."""

    trained: TrainedTable
    version: RowVersion
    rows: TableRows


class EarlyStopping(keras.callbacks.EarlyStopping):  # type: ignore[misc,unused-ignore]
    """`keras.callbacks.EarlyStopping` that also restores rows of tables with `restore_best_weights`.

    After training, the model is identical to the model of the best epoch, including the optimizer state
    in the rows. After each better epoch, every rank copies all of its rows in memory. On several ranks,
    the monitored value must be the same on all ranks.

    Args:
        *arguments: arguments of Keras's callback.
        max_bytes: maximum size of the copied rows of one table on one rank. Defaults to 1 GiB.
        **options: options of Keras's callback.

    Raises:
        UnsupportedError: during training, a table exceeds `max_bytes`.
        InvalidArgumentError: at the end of training, the best epochs of the ranks differ.
    """

    def __init__(self, *arguments: Any, max_bytes: int | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._max_bytes = saved_rows.MAX_BYTES if max_bytes is None else max_bytes
        self._kept: list[_KeptRows] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Copies the rows after a better epoch.

        `epoch` and `logs` are those of Keras's callback.

        Raises:
            UnsupportedError: a table exceeds `max_bytes`.
        """
        before = self.best_weights
        super().on_epoch_end(epoch, logs)
        if self.best_weights is not None and self.best_weights is not before:
            self._kept.clear()
            trained = filter(None, map(trained_table, self.model.weights))
            self._kept += [self._copy_rows(each) for each in trained]

    def on_train_end(self, logs: Any = None) -> None:
        """Restores the rows of the best epoch, and then the weights.

        Args:
            logs: see Keras's callback.

        Raises:
            InvalidArgumentError: the best epochs of the ranks differ.
        """
        if self.best_weights is not None:
            self._restore()
        super().on_train_end(logs)
        self._kept.clear()

    def _copy_rows(self, trained: TrainedTable) -> _KeptRows:
        container, table = trained.agent.container, trained.name
        container.join_load()
        num_bytes = saved_rows.num_row_bytes(container, table)
        if num_bytes > self._max_bytes:
            raise UnsupportedError(
                f"the rows of table {table!r} are {num_bytes:,} bytes, but EarlyStopping copies up to "
                f"{self._max_bytes:,} bytes per table; pass a larger max_bytes, or use Keras's "
                "EarlyStopping without restore_best_weights and ModelCheckpoint('best.weights.h5', "
                "save_best_only=True, save_weights_only=True), and load that file afterwards",
                table=table,
            )
        return _KeptRows(trained, get_version(container, table), gather_rows(container, table))

    def _restore(self) -> None:
        for container in dict.fromkeys(each.trained.agent.container for each in self._kept):
            container.quiesce()
            if container.collective.world_size > 1:
                Coordinator(container.collective, "rows of the best epoch").all_equal(
                    {"epoch": str(self.best_epoch)},
                    "ranks found different best epochs",
                    "monitor a value that is the same on all ranks, such as a mean over them",
                )
        for each in self._kept:
            container, table = each.trained.agent.container, each.trained.name
            if get_version(container, table) != each.version:
                replace_rows(container, table, each.rows)
                set_version(container, table, each.version)
            each.trained.agent.accept_rows([table])
