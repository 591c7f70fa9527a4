"""Declarations of tables and features, with the names of keras-rs: `TableConfig`, `FeatureConfig`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any

import sparring
from sparring.adapter import StorageLike, TableDeclaration, make_declaration, shared_settings
from sparring.contracts import AdmissionLike, ExpiryLike, Initializer
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.layers.keras_names import convert_initializer, resolve_seed

__all__ = ["COMBINERS", "FeatureConfig", "TableConfig", "check_combiner", "declaration"]

COMBINERS = ("sum", "mean", "sqrtn")

_IDS_PER_PARTITION = 256
"""Default of keras-rs for the buffer sizes of SparseCore."""


@dataclass(frozen=True)
class TableConfig:
    """A table: a named set of rows, one per trained id.

    The positional arguments, up to `max_unique_ids_per_partition`, are the same as in keras-rs.

    Args:
        name: name of the table. Initial embeddings depend on it, on `seed` and on the id.
        vocabulary_size: maximum number of rows in the storage; None means no limit. It does not limit
            the range of ids, which may be any int64.
        embedding_dim: number of elements of an embedding; required.
        initializer: initial embeddings: a `sparring.Initializer`, its name, or
            ``{"kind": name, parameter: value}``; or an initializer of Keras that does not depend on the
            shape. None means uniform in ±0.05, as in Keras.
        optimizer: rejected, because `sparring_tf.Optimizer` updates all tables.
        combiner: how the embeddings of a bag are combined: ``sum``, ``mean`` or ``sqrtn``. None
            returns one embedding per id.
        placement: ``sharded`` stores each row on one rank, ``replicated`` stores all rows on every rank.
            keras-rs' ``auto`` and ``default_device`` mean ``sharded``; ``sparsecore`` is rejected.
        max_ids_per_partition: rejected unless it is keras-rs' default of 256, because buffers have no
            fixed size here.
        max_unique_ids_per_partition: see `max_ids_per_partition`.
        dtype: dtype of stored embeddings: float32, float64, float16, bfloat16 or int8. For narrow tables,
            outputs, gradients and optimizer state are computed in float32.
        admission: filter that decides which new ids get a row: an `Admission` of `sparring.contracts` or
            ``{"kind": name, parameter: value}``. None admits all.
        seed: see `name`. 0 uses the seed of an initializer of Keras.
        storage: storage backend of this table, instead of the collection's.
        expire: removes rows that were not trained for some time: a `sparring.Expiry` or
            ``{"after_steps": …, "after_days": …}``. None keeps all rows.

    Raises:
        InvalidArgumentError: `embedding_dim` is missing.
        UnsupportedError: an argument of keras-rs that has no effect here differs from its default, or an
            initializer depends on the shape.
    """

    name: str
    vocabulary_size: int | None = None
    embedding_dim: int = 0
    initializer: Initializer | str | dict[str, Any] | None = None
    optimizer: InitVar[Any] = None
    combiner: str | None = "mean"
    placement: str = "sharded"
    max_ids_per_partition: InitVar[int] = _IDS_PER_PARTITION
    max_unique_ids_per_partition: InitVar[int] = _IDS_PER_PARTITION
    _: KW_ONLY
    dtype: str = "float32"
    admission: AdmissionLike = None
    seed: int = 0
    storage: StorageLike | None = None
    expire: ExpiryLike = None

    @classmethod
    def of(cls, table: sparring.TableConfig, combiner: str | None = "sum") -> TableConfig:
        """Converts the configuration of a table that is independent of the framework.

        Args:
            table: configuration of the table.
            combiner: see `TableConfig`.
        """
        return cls(
            name=table.name,
            embedding_dim=table.dim,
            combiner=combiner,
            dtype=table.dtype,
            **shared_settings(table),
        )

    def __post_init__(
        self, optimizer: Any, max_ids_per_partition: int, max_unique_ids_per_partition: int
    ) -> None:
        if not self.embedding_dim:
            raise InvalidArgumentError(
                f"TableConfig of table {self.name!r} has no embedding_dim; give the number of elements "
                f"of an embedding: TableConfig({self.name!r}, vocabulary_size, embedding_dim), or "
                "embedding_dim=16",
                table=self.name,
            )
        if optimizer is not None:
            raise UnsupportedError(
                f"TableConfig of table {self.name!r} does not support optimizer; pass hyper-parameters "
                f"to sparring_tf.Optimizer(model, 'adagrad', tables={{{self.name!r}: {{'lr': …}}}})",
                table=self.name,
            )
        for setting, found in (
            ("max_ids_per_partition", max_ids_per_partition),
            ("max_unique_ids_per_partition", max_unique_ids_per_partition),
        ):
            if found != _IDS_PER_PARTITION:
                raise UnsupportedError(
                    f"TableConfig of table {self.name!r}: {setting}={found} has no effect, because "
                    "buffers have no fixed size here and no id is dropped; leave it out",
                    table=self.name,
                )
        if self.placement == "sparsecore":
            raise UnsupportedError(
                f"TableConfig of table {self.name!r}: placement='sparsecore' needs the SparseCore of a "
                "TPU, which sparring does not support; give placement='auto', which divides the rows "
                "among the ranks, or placement='replicated'",
                table=self.name,
            )
        object.__setattr__(self, "seed", resolve_seed(self.seed, self.initializer, self.name))
        object.__setattr__(self, "initializer", convert_initializer(self.initializer, self.name))
        if self.placement in ("auto", "default_device"):
            object.__setattr__(self, "placement", "sharded")


@dataclass(frozen=True)
class FeatureConfig:
    """A feature that looks up in a table. Several features may share one table.

    The positional arguments are the same as in keras-rs.

    Args:
        name: name of the feature in error messages.
        table: the table in which the feature is looked up.
        input_shape: shape of the ids, or None. It is saved with the layer, but as in keras-rs on CPU and
            GPU, it does not restrict the size of batches.
        output_shape: shape of the embeddings, or None. The last number must be the table's
            `embedding_dim`.

    Raises:
        InvalidArgumentError: a shape is not a sequence of numbers and None, or `output_shape` does not
            end in `embedding_dim`.
    """

    name: str
    table: TableConfig
    input_shape: Sequence[int | None] | None = None
    output_shape: Sequence[int | None] | None = None

    def __post_init__(self) -> None:
        for setting in ("input_shape", "output_shape"):
            checked = _validate_shape(getattr(self, setting), setting, self.name)
            object.__setattr__(self, setting, checked)
        shape, table = self.output_shape, self.table
        if shape is not None and shape[-1] != getattr(table, "embedding_dim", shape[-1]):
            raise InvalidArgumentError(
                f"feature {self.name!r}: output_shape {shape} does not end in "
                f"embedding_dim {table.embedding_dim} of table {table.name!r}; correct one of them",
                feature=self.name,
            )


def _validate_shape(given: Any, setting: str, feature: str) -> tuple[int | None, ...] | None:
    if given is None:
        return None
    try:
        shape = tuple(None if each is None else operator.index(each) for each in given)
    except TypeError:
        shape = ()
    if not shape:
        raise InvalidArgumentError(
            f"feature {feature!r}: {setting} must be a tuple of at least one number or None, such as "
            f"(64, None), found {given!r}",
            feature=feature,
        )
    return shape


def check_combiner(combiner: object, table: str) -> None:
    """Checks the name of a combiner.

    Raises:
        InvalidArgumentError: the combiner is unknown. The message lists the supported ones.
    """
    if combiner not in COMBINERS:
        raise InvalidArgumentError(
            f"combiner of table {table!r}: must be one of {', '.join(COMBINERS)}, found "
            f"{combiner!r}",
            table=table,
        )


def declaration(config: TableConfig, storage: StorageLike) -> TableDeclaration:
    """Returns the declaration of a table.

    Args:
        config: configuration of the table.
        storage: storage backend if the table does not specify one.

    Raises:
        InvalidArgumentError: the dtype or initializer is unknown, or a number is out of range.
    """
    initializer = config.initializer
    table = sparring.TableConfig(
        config.name,
        config.embedding_dim,
        config.dtype,
        sparring.Uniform(-0.05, 0.05) if initializer is None else initializer,
        seed=config.seed,
        admission=config.admission,
        placement=config.placement,
        expire=config.expire,
    )
    return make_declaration(
        table,
        storage if config.storage is None else config.storage,
        capacity=config.vocabulary_size,
        setting="vocabulary_size",
    )
