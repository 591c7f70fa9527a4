"""`Tables`: embedding tables of a JAX program.

ids ──► lookup ──► rows, places ──► value_and_grad of a jitted loss ──► gradients of rows ──► accumulate
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from sparring import LoadResult, SaveResult, StepContainer
from sparring.adapter import StorageLike, TableGroup, make_declaration
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError
from sparring_jax.batch import Batch, Positions
from sparring_jax.dense_ranks import average_gradients, broadcast
from sparring_jax.ids import validate_ids, validate_lengths
from sparring_jax.inference import infer
from sparring_jax.padded_sizes import PaddedSizes
from sparring_jax.saved_state import STATE_NAME, Part, check_state, gather_state, restore_state

__all__ = ["Tables"]

_Tree = TypeVar("_Tree")
_Bags = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32] | None]


class Tables(TableGroup):
    """Some tables, and the features that look up in them.

    Args:
        tables: what their rows are.
        features: feature → table; several may share one. None: one feature of each table, of its name.
        storage: which storage keeps them: the name of a backend; that with options, as
            ``{"backend": "hkv", "capacity": 1000}``; or, of a single table, an open storage.
        container: where they live; `join_job` gives that of several ranks. None: one of their own.

    Raises:
        InvalidArgumentError: two tables of one name, a feature of an unknown table, no tables, or a table
            of float64 without ``jax_enable_x64``.
    """

    def __init__(
        self,
        tables: TableConfig | Sequence[TableConfig],
        *,
        features: Mapping[str, str] | None = None,
        storage: StorageLike = "hkv",
        container: StepContainer | None = None,
    ) -> None:
        given = [tables] if isinstance(tables, TableConfig) else list(tables)
        names = [each.name for each in given]
        if not names or len(set(names)) < len(names):
            raise InvalidArgumentError(
                f"Tables: takes some tables of different names, found {names}"
            )
        self.features = dict(zip(names, names, strict=True)) if features is None else dict(features)
        for feature, table in self.features.items():
            if table not in names:
                raise InvalidArgumentError(
                    f"feature {feature!r} looks up in table {table!r}, and there are "
                    f"{', '.join(names)}",
                    feature=feature,
                )
        for each in given:
            if each.dtype == "float64" and not jax.config.jax_enable_x64:
                raise InvalidArgumentError(
                    f"table {each.name!r} is of float64, which JAX cuts to float32; set "
                    'jax.config.update("jax_enable_x64", True), or declare it as float32',
                    table=each.name,
                )
        self._sizes = PaddedSizes()
        declarations = [
            make_declaration(each, storage, capacity=None, setting="capacity") for each in given
        ]
        super().__init__(declarations, container)

    def lookup(self, ids: Mapping[str, Any], *, is_training: bool = True) -> Batch:
        """Rows for a batch. Changes no table.

        All ranks call it, with the same features.

        Args:
            ids: by feature: int64 of any shape, one embedding for each; or ``(ids, lengths)``: ids
                ``(n,)`` in bags, which `pooled` adds up.
            is_training: gradients of these rows will come. Without, nothing is kept for them; with it,
                the keys are kept until the next step, if the batch exists for so long.

        Raises:
            InvalidArgumentError: an unknown feature, ids that are no int64, lengths that do not fit; on
                this rank or another.
            ClosedError: the container was closed.
        """
        own_error: Exception | None = None
        bags: dict[str, _Bags] = {}
        try:
            bags = {feature: self._validate_bags(feature, given) for feature, given in ids.items()}
        except Exception as error:
            own_error = error  # for all ranks: the others have begun this lookup
        wanted = {self.features[feature] for feature in ids if feature in self.features}
        by_table = {
            table: [each for each in bags if self.features[each] == table]
            for table in self.table_names
            if table in wanted
        }
        requests = [
            (table, _concatenate([bags[feature][0].reshape(-1) for feature in features]))
            for table, features in by_table.items()
        ]
        found = self.container.lookup_all(requests, is_registered=is_training, own_error=own_error)
        rows, positions, keys, shadow_ids = {}, {}, {}, {}
        for (table, features), each in zip(by_table.items(), found, strict=True):
            kind = (table, *(_num_outputs(bags[feature]) for feature in features))
            padded = np.zeros(
                (self._sizes.of(kind, len(each.keys)), each.rows.shape[1]), each.rows.dtype
            )
            padded[: len(each.rows)] = each.rows
            rows[table], keys[table] = jnp.asarray(padded), np.asarray(each.keys)
            shadow_ids[table] = each.shadow_id
            inverse, begin = np.asarray(each.inverse).astype(np.int32), 0
            for feature in features:
                end = begin + bags[feature][0].size
                positions[feature] = self._places(feature, bags[feature], inverse[begin:end])
                begin = end
        batch = Batch(rows, positions, keys, shadow_ids)
        resources = self.container.resources
        for shadow_id in shadow_ids.values():
            if shadow_id is not None:
                # A batch that is gone gets no gradient, and must not be kept until a step.
                weakref.finalize(batch, resources.release, shadow_id).atexit = False
        return batch

    def accumulate(self, batch: Batch, gradients: Mapping[str, Any]) -> None:
        """Hands in the gradients of a batch's rows; those of several batches add up by key.

        Args:
            batch: looked up since the last step, for training.
            gradients: of ``batch.rows``, as `jax.grad` gives them.

        Raises:
            InvalidArgumentError: other tables or shapes than the batch's, the batch takes no
                gradients (any more), or these arrays were handed in before. Nothing was added.
        """
        if gradients.keys() != batch.rows.keys():
            raise InvalidArgumentError(
                f"accumulate: the batch has rows of {', '.join(batch.rows)}, and the gradients are of "
                f"{', '.join(gradients)}; give the gradients of batch.rows"
            )
        ready = []
        for table, gradient in gradients.items():
            wanted, shadow_id = batch.rows[table], batch.shadow_ids[table]
            if shadow_id is None:
                raise InvalidArgumentError(
                    f"accumulate: table {table!r} was looked up with is_training=False, and takes no "
                    "gradients",
                    table=table,
                )
            self.container.resources.batch_input(shadow_id)
            if gradient.shape != wanted.shape or gradient.dtype != wanted.dtype:
                raise InvalidArgumentError(
                    f"accumulate: the gradient of table {table!r} must be {wanted.shape} {wanted.dtype}, "
                    f"found {gradient.shape} {gradient.dtype}",
                    table=table,
                )
            batch.check_is_new(table, gradient)
            ready.append((shadow_id, np.asarray(gradient)[: len(batch.keys[table])]))
        for shadow_id, own in ready:
            self.container.resources.accumulate(shadow_id, np.ascontiguousarray(own))
        for gradient in gradients.values():
            batch.note_gradient(gradient)

    def infer(self, table: str, ids: Any) -> jax.Array:
        """Embeddings of ids inside a jitted function, as the table has them when it runs.

        Args:
            table: its name.
            ids: ``(…, 2)`` of `pack_ids`; or, with ``jax_enable_x64``, int64 ``(…)``.

        Returns:
            ``(…, dim)``. To `jax.grad` they are constants: train by `lookup`.

        Raises:
            InvalidArgumentError: an unknown table, or ids of another dtype.
            UnsupportedError: rows of the table are on several ranks.
        """
        return infer(self.container, table, ids)

    # -- several ranks

    def average(self, gradients: _Tree) -> _Tree:
        """Means over all ranks of the gradients of ordinary parameters, a pytree of arrays; all ranks
        call it. Those of rows are averaged by the step."""
        self.container.quiesce()
        return average_gradients(gradients, self.container.collective)

    def broadcast(self, parameters: _Tree) -> _Tree:
        """Parameters of rank 0, a pytree of arrays, on all ranks, which call it with like ones."""
        self.container.quiesce()
        return broadcast(parameters, self.container.collective)

    # -- snapshots

    def save(self, url: str, **parts: Part) -> SaveResult:
        """Saves a snapshot: all rows with their state, and pytrees of arrays.

        PyTorch and TensorFlow load its rows, and this loads theirs. All ranks call it.

        Args:
            url: of the snapshot, a path or any URL of fsspec, where nothing is yet.
            **parts: by name, pytrees of arrays and numbers; an `Optimizer` for what it keeps for whole
                tables.

        Raises:
            InvalidArgumentError: a part has a leaf that is no array of numbers.
            SnapshotError: `url` exists, or the file system failed.
        """
        return self.container.save(url, states={STATE_NAME: gather_state(parts)})

    def load(self, url: str, **parts: Part) -> dict[str, Any]:
        """Takes over a snapshot: all rows with their state, and pytrees. All ranks call it.

        Args:
            url: of the snapshot.
            **parts: by name, pytrees like those that were saved; an `Optimizer` is changed in place.

        Returns:
            The pytrees as they were saved, by name.

        Raises:
            InvalidArgumentError: the snapshot has no such parts, as one that another framework saved, or
                parts of other shapes; or other tables. Nothing was changed.
            SnapshotError: there is no such snapshot, or it is damaged.
        """
        if parts:
            check_state(url, parts)
        loaded: LoadResult = self.container.load(url)
        return restore_state(loaded.states.get(STATE_NAME), parts) if parts else {}

    def _validate_bags(self, feature: str, given: Any) -> _Bags:
        if feature not in self.features:
            raise InvalidArgumentError(
                f"lookup: there is no feature {feature!r}; there are {', '.join(self.features)}",
                feature=feature,
            )
        what = f"feature {feature!r}"
        if not isinstance(given, tuple):
            return validate_ids(given, what), None
        if len(given) != 2:
            raise InvalidArgumentError(
                f"{what}: give ids, or (ids, lengths); found a tuple of {len(given)}"
            )
        ids = validate_ids(given[0], what)
        if ids.ndim != 1:
            raise InvalidArgumentError(
                f"{what}: ids of bags must be one-dimensional, found shape {ids.shape}"
            )
        return ids, validate_lengths(given[1], ids.size, what)

    def _places(self, feature: str, bags: _Bags, inverse: npt.NDArray[np.int32]) -> Positions:
        ids, lengths = bags
        table = self.features[feature]
        if lengths is None:
            return Positions(table, jnp.asarray(inverse.reshape(ids.shape)))
        size = self._sizes.of(("ids", feature, lengths.size), inverse.size)
        padded = np.zeros(size, np.int32)
        padded[: inverse.size] = inverse
        numbers = np.full(size, lengths.size, np.int32)
        numbers[: inverse.size] = np.repeat(np.arange(lengths.size, dtype=np.int32), lengths)
        return Positions(table, jnp.asarray(padded), jnp.asarray(numbers), jnp.asarray(lengths))


def _num_outputs(bags: _Bags) -> int:
    """Embeddings of a feature in a batch: batches of one size are of one kind."""
    ids, lengths = bags
    return ids.size if lengths is None else lengths.size


def _concatenate(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])
