"""How tables and features are declared, with the names of keras-rs: `TableConfig`, `FeatureConfig`."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any

import sparring
from sparring.adapter import StorageLike, TableDeclaration, declared, shared_settings
from sparring.contracts import AdmissionLike, ExpiryLike, Initializer
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.keras_names import initializer_from

__all__ = ["COMBINERS", "FeatureConfig", "TableConfig", "check_combiner", "declaration"]

COMBINERS = ("sum", "mean", "sqrtn")


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """One table: a named set of rows, one for each id that was trained.

    Args:
        name: of the table; with `seed` and the id it determines an initial embedding.
        embedding_dim: elements of an embedding.
        vocabulary_size: the most rows that the storage may hold; None sets no bound. It is no
            range: ids may be any int64.
        initializer: what an id reads as before it was trained: a `sparring.Initializer`, its
            name, or ``{"kind": name, parameter: value}``; or one of Keras that looks at no shape.
            None means uniform in ±0.05, as Keras.
        combiner: how the embeddings of a bag become one: ``sum``, ``mean``, ``sqrtn``; None: one
            embedding for each id.
        dtype: of embeddings, as they are stored: float32, float64, float16 or bfloat16. Outputs
            are computed in float32 for 16-bit tables, and so are gradients and optimizer state.
        admission: which unseen ids earn a row, a `sparring.contracts.admission.Admission` or
            ``{"kind": name, parameter: value}``; None: all.
        seed: see `name`.
        storage: in place of the collection's.
        placement: ``sharded``: each row is on one rank; ``replicated``: every rank keeps all.
            keras-rs's ``auto``, ``default_device`` and ``sparsecore`` mean ``sharded``.
        expire: after how long without training rows are removed, a `sparring.contracts.Expiry`
            or ``{"after_steps": …, "after_days": …}``; None: never.
        optimizer: keras-rs's, refused: `sparring_tf.Optimizer` has it.
        max_ids_per_partition: keras-rs's, ignored: nothing here has a fixed size.
        max_unique_ids_per_partition: likewise.

    Raises:
        UnsupportedError: `optimizer` was given, or an initializer that looks at a shape.
    """

    name: str
    embedding_dim: int
    vocabulary_size: int | None = None
    initializer: Initializer | str | dict[str, Any] | None = None
    combiner: str | None = "mean"
    dtype: str = "float32"
    admission: AdmissionLike = None
    seed: int = 0
    storage: StorageLike | None = None
    placement: str = "sharded"
    expire: ExpiryLike = None
    optimizer: InitVar[Any] = None
    max_ids_per_partition: InitVar[int | None] = None
    max_unique_ids_per_partition: InitVar[int | None] = None

    @classmethod
    def of(cls, table: sparring.TableConfig, combiner: str | None = "sum") -> TableConfig:
        """A table that was declared for any framework."""
        return cls(
            name=table.name,
            embedding_dim=table.dim,
            combiner=combiner,
            dtype=table.dtype,
            **shared_settings(table),
        )

    def __post_init__(self, optimizer: Any, *_: Any) -> None:
        if optimizer is not None:
            raise UnsupportedError(
                f"TableConfig of table {self.name!r} has no optimizer; give its hyper-parameters to "
                f"sparring_tf.Optimizer(model, 'adagrad', tables={{{self.name!r}: {{'lr': …}}}})",
                table=self.name,
            )
        object.__setattr__(self, "initializer", initializer_from(self.initializer, self.name))
        if self.placement in ("auto", "default_device", "sparsecore"):
            object.__setattr__(self, "placement", "sharded")


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """A feature that looks up in a table. Several features may share one table.

    Args:
        name: of the feature, for messages.
        table: where it looks up.
        input_shape: keras-rs's, ignored: batches have any size.
        output_shape: keras-rs's; its last number must be the table's `embedding_dim`.

    Raises:
        InvalidArgumentError: it is not.
    """

    name: str
    table: TableConfig
    input_shape: InitVar[Any] = None
    output_shape: InitVar[Any] = None

    def __post_init__(self, input_shape: Any, output_shape: Any) -> None:
        if output_shape is not None and output_shape[-1] != self.table.embedding_dim:
            raise InvalidArgumentError(
                f"feature {self.name!r}: output_shape {tuple(output_shape)} does not end in "
                f"embedding_dim {self.table.embedding_dim} of table {self.table.name!r}",
                feature=self.name,
            )


def check_combiner(combiner: object, table: str) -> None:
    """Refuses what is no combiner.

    Raises:
        InvalidArgumentError: naming those that there are.
    """
    if combiner not in COMBINERS:
        raise InvalidArgumentError(
            f"combiner of table {table!r}: must be one of {', '.join(COMBINERS)}, found "
            f"{combiner!r}",
            table=table,
        )


def declaration(config: TableConfig, storage: StorageLike) -> TableDeclaration:
    """Table declaration of a configuration.

    Args:
        config: of one table.
        storage: for tables that name none of their own.

    Raises:
        InvalidArgumentError: an unknown dtype or initializer, or a number out of range.
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
    return declared(
        table,
        storage if config.storage is None else config.storage,
        capacity=config.vocabulary_size,
        setting="vocabulary_size",
    )
