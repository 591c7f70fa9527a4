"""`Tables`: embedding tables of a JAX program.

ids ──► lookup ──► rows, positions ──► value_and_grad of a jitted loss ──► row gradients ──► accumulate
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
    """A group of tables and the features that look up in them.

    Args:
        tables: one or more tables.
        features: feature → table; several features may share a table. By default, each table has one
            feature of the same name.
        storage: the name of a storage backend; or the name with options, such as
            ``{"backend": "hkv", "capacity": 1000}``; or, for a single table, an open storage.
        container: the container of the tables; `join_job` returns one for several ranks. By default,
            the tables get a separate container.

    Raises:
        InvalidArgumentError: there are no tables, two tables have the same name, a feature refers to an
            unknown table, or a table has dtype float64 and ``jax_enable_x64`` is not set.

    Examples:
        >>> import numpy as np
        >>> from sparring import TableConfig
        >>> from sparring_jax import Tables
        >>> tables = Tables([TableConfig("items", dim=4)])
        >>> batch = tables.lookup({"items": np.array([7, -1, 7])})
        >>> batch.keys["items"].tolist(), batch.rows["items"].shape[1]
        ([7, -1], 4)
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
                f"Tables: expected one or more tables with different names, found {names}; rename or add "
                "tables"
            )
        self.features = dict(zip(names, names, strict=True)) if features is None else dict(features)
        for feature, table in self.features.items():
            if table not in names:
                raise InvalidArgumentError(
                    f"Tables: feature {feature!r} looks up in unknown table {table!r}; the tables are "
                    f"{', '.join(names)}",
                    feature=feature,
                )
        for each in given:
            if each.dtype == "float64" and not jax.config.jax_enable_x64:
                raise InvalidArgumentError(
                    f"Tables: table {each.name!r} has dtype float64, which JAX truncates to float32; set "
                    'jax.config.update("jax_enable_x64", True), or declare it as float32',
                    table=each.name,
                )
        self._sizes = PaddedSizes()
        declarations = [
            make_declaration(each, storage, capacity=None, setting="capacity") for each in given
        ]
        super().__init__(declarations, container)

    def lookup(self, ids: Mapping[str, Any], *, is_training: bool = True) -> Batch:
        """Looks up the rows of a batch. It never changes a table.

        All ranks call it with the same features.

        Args:
            ids: feature → int64 ids of any shape, for one embedding per id; or feature →
                ``(ids, lengths)`` with ids ``(n,)`` in bags, for `pool`.
            is_training: whether a backward pass follows. If True, the keys are kept until the next
                step or until the batch is garbage-collected.

        Raises:
            InvalidArgumentError: on any rank, a feature is unknown, ids are not int64, or lengths do not
                match the ids.
            ClosedError: the container was closed.
        """
        own_error: Exception | None = None
        bags: dict[str, _Bags] = {}
        try:
            bags = {feature: self._validate_bags(feature, given) for feature, given in ids.items()}
        except Exception as error:
            own_error = error  # reported to the other ranks, which have started this lookup
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
                # A batch that no longer exists gets no gradient, so its keys are released at once.
                weakref.finalize(batch, resources.release, shadow_id).atexit = False
        return batch

    def accumulate(self, batch: Batch, gradients: Mapping[str, Any]) -> None:
        """Adds the gradients of a batch's rows. The gradients of several batches are summed per key.

        Args:
            batch: a batch that was looked up for training since the last step.
            gradients: gradients with respect to ``batch.rows``, as returned by `jax.grad`.

        Raises:
            InvalidArgumentError: the tables or shapes differ from the batch's, the batch does not take
                gradients or is from before the last step, or these arrays were already accumulated.
                Nothing was added.
        """
        if gradients.keys() != batch.rows.keys():
            raise InvalidArgumentError(
                f"accumulate: the batch has rows of {', '.join(batch.rows)}, but the gradients are for "
                f"{', '.join(gradients)}; give the gradients of batch.rows"
            )
        ready = []
        for table, gradient in gradients.items():
            wanted, shadow_id = batch.rows[table], batch.shadow_ids[table]
            if shadow_id is None:
                raise InvalidArgumentError(
                    f"accumulate: table {table!r} was looked up with is_training=False and takes no "
                    "gradients; look up with is_training=True",
                    table=table,
                )
            self.container.resources.batch_input(shadow_id)
            if gradient.shape != wanted.shape or gradient.dtype != wanted.dtype:
                raise InvalidArgumentError(
                    f"accumulate: the gradient of table {table!r} must be {wanted.shape} {wanted.dtype}, "
                    f"found {gradient.shape} {gradient.dtype}; use jax.grad",
                    table=table,
                )
            batch.check_is_new(table, gradient)
            ready.append((shadow_id, np.asarray(gradient)[: len(batch.keys[table])]))
        for shadow_id, own in ready:
            self.container.resources.accumulate(shadow_id, np.ascontiguousarray(own))
        for gradient in gradients.values():
            batch.note_gradient(gradient)

    def infer(self, table: str, ids: Any) -> jax.Array:
        """Looks up embeddings inside a jitted function, at the time when the function runs.

        Args:
            table: name of a table.
            ids: result ``(…, 2)`` of `pack_ids`; or int64 ``(…)`` if ``jax_enable_x64`` is set.

        Returns:
            ``(…, dim)``. `jax.grad` treats them as constants; use `lookup` for training.

        Raises:
            InvalidArgumentError: the table is unknown, or the ids have the wrong dtype.
            UnsupportedError: the rows of the table are on several ranks.
        """
        return infer(self.container, table, ids)

    # -- several ranks

    def average(self, gradients: _Tree) -> _Tree:
        """Averages the gradients of ordinary parameters, a pytree of arrays, over all ranks.

        All ranks call it. Gradients of rows are averaged by the step.

        Args:
            gradients: a pytree of arrays, with the same shapes on all ranks.
        """
        self.container.quiesce()
        return average_gradients(gradients, self.container.collective)

    def broadcast(self, parameters: _Tree) -> _Tree:
        """Returns rank 0's parameters. All ranks call it.

        Args:
            parameters: a pytree of arrays, with the same shapes on all ranks.
        """
        self.container.quiesce()
        return broadcast(parameters, self.container.collective)

    # -- snapshots

    def save(self, url: str, **parts: Part) -> SaveResult:
        """Saves a snapshot: all rows with their optimizer state, and pytrees of arrays.

        PyTorch and TensorFlow can load its rows, and `load` can load theirs. All ranks call it.

        Args:
            url: a path or any URL of fsspec that does not exist yet.
            **parts: name → pytree of arrays and numbers, or an `Optimizer` whose state for whole tables
                is saved.

        Raises:
            InvalidArgumentError: a part has a leaf that is not an array of numbers.
            SnapshotError: `url` exists, or the file system failed.
        """
        return self.container.save(url, states={STATE_NAME: gather_state(parts)})

    def load(self, url: str, **parts: Part) -> dict[str, Any]:
        """Loads a snapshot: all rows with their optimizer state, and pytrees. All ranks call it.

        Args:
            url: URL of the snapshot.
            **parts: name → pytree with the structure and shapes that were saved; or an `Optimizer`,
                which is changed in place.

        Returns:
            The saved pytrees by name.

        Raises:
            InvalidArgumentError: the tables or parts differ from those of the snapshot, for example
                because another framework saved it. Nothing was changed.
            SnapshotError: the snapshot does not exist or is damaged.
        """
        if parts:
            check_state(url, parts)
        loaded: LoadResult = self.container.load(url)
        return restore_state(loaded.states.get(STATE_NAME), parts) if parts else {}

    def _validate_bags(self, feature: str, given: Any) -> _Bags:
        if feature not in self.features:
            raise InvalidArgumentError(
                f"lookup: there is no feature {feature!r}; the features are {', '.join(self.features)}",
                feature=feature,
            )
        what = f"feature {feature!r}"
        if not isinstance(given, tuple):
            return validate_ids(given, what), None
        if len(given) != 2:
            raise InvalidArgumentError(
                f"lookup: {what} must be ids or (ids, lengths), found a tuple of {len(given)} elements; "
                "give ids as an array"
            )
        ids = validate_ids(given[0], what)
        if ids.ndim != 1:
            raise InvalidArgumentError(
                f"lookup: ids of {what} in bags must be one-dimensional, found shape {ids.shape}; "
                "concatenate the bags"
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
    """Returns the number of embeddings of a feature."""
    ids, lengths = bags
    return ids.size if lengths is None else lengths.size


def _concatenate(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])
