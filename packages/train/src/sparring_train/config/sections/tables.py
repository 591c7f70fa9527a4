"""The `tables` section."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field

from sparring import Expiry
from sparring.adapter import ADMISSIONS, choice_type
from sparring.contracts import INITIALIZERS, Admission, ByteCount, Initializer, TableConfig
from sparring.errors import ConfigError
from sparring_train.config.names import OWN, ClassName, find_tag
from sparring_train.config.section import Section
from sparring_train.named_classes import create, find_class

__all__ = ["OwnInitializer", "TableOverride", "TablesConfig"]


class OwnInitializer(Section):
    """Your own class, which selects an initializer for each table. Other keys are passed to the class.

    The class derives from `sparring.contracts.Initializer`, or has a method `initializer(table)`, which
    is called with the `TableConfig` of a table and returns an `Initializer` of this project.
    """

    model_config = ConfigDict(extra="allow")

    kind: ClassName

    def initializer(self, table: TableConfig) -> Initializer:
        """Returns the initializer of a table.

        Raises:
            ConfigError: the class does not exist, does not accept its arguments, or does not return an
                initializer of this project.
        """
        setting = "tables.initializer"
        found: type[Any] = find_class(self.kind, setting)
        if not issubclass(found, Initializer):
            found = find_class(self.kind, setting, methods=("initializer",))
        made: Any = create(found, self.kind, setting, options=self.model_extra or {})
        if not isinstance(made, Initializer):
            made = made.initializer(table)
        # Initial values are computed by kernels, and a snapshot stores the kind.
        if type(made) not in INITIALIZERS.values():
            kinds = ", ".join(each.__name__ for each in INITIALIZERS.values())
            raise ConfigError(
                f"{setting}: {self.kind} returned a {type(made).__name__} for table {table.name!r}; "
                f"return one of {kinds} of sparring.contracts",
                setting=setting,
            )
        chosen: Initializer = made
        return chosen


class AllAdmission(Section):
    """Admits every id in the first step that trains on it. Use it in `overrides` for a table without a
    filter.
    """

    kind: Literal["all"]


if TYPE_CHECKING:
    _InitializerChoice = Initializer | OwnInitializer
    _AdmissionChoice = Admission | AllAdmission
else:
    _InitializerChoice = choice_type({**INITIALIZERS, OWN: OwnInitializer}, find_tag)
    _AdmissionChoice = choice_type({"all": AllAdmission, **ADMISSIONS})


class TableOverride(Section):
    """Settings of one table, which replace the settings of all tables."""

    initializer: _InitializerChoice | None = Field(
        None,
        description="Initial embedding of a key that has no row: a mapping, or a name. Null: the setting "
        "of all tables.",
    )
    admission: _AdmissionChoice | None = Field(
        None,
        description="Filter that decides which new ids get a row; `all` admits every id. Null: the "
        "setting of all tables.",
    )
    placement: Literal["sharded", "replicated"] | None = Field(
        None, description="Ranks that store its rows. Null: the setting of all tables."
    )
    expire: Expiry | None = Field(
        None,
        description="Time or steps without training after which a row is removed. Null: the setting of "
        "all tables.",
    )


class TablesConfig(Section):
    """Settings of all tables, and overrides for single tables.

    The model determines the tables and their dim. For example, a model of kind `matrix_factorization` has
    the tables `user` and `item`, and a model of kind `dlrm` has one table per categorical column.
    """

    dtype: Literal["float32", "float64", "float16", "bfloat16", "int8"] = Field(
        "float32",
        description="Type of embeddings. Optimizer state and computations are `float64` for `float64`, "
        "otherwise `float32`. Updated embeddings of 16 and 8 bits are rounded stochastically. `int8` "
        "tables also store optimizer state in 8 bits, and must be in host memory.",
    )
    initializer: _InitializerChoice | None = Field(
        None,
        description="Initial embedding of a key that has no row: a mapping, or the name of a kind with "
        "its defaults. Null: the model's initializer.",
    )
    admission: _AdmissionChoice | None = Field(
        None, description="Filter that decides which new ids get a row. Null admits every id."
    )
    placement: Literal["sharded", "replicated"] = Field(
        "sharded",
        description="`sharded`: one rank stores each row. `replicated`: every rank stores all rows; "
        "lookups need no communication, and each rank sends its gradients to all others. For small "
        "tables; their storage must not evict rows.",
    )
    expire: Expiry | None = Field(
        None,
        description="Time or steps without training after which a row is removed; deltas record it as "
        "erased. Null keeps rows.",
    )
    memory_bytes: Annotated[ByteCount, Field(ge=1)] | None = Field(
        None,
        description="Maximum memory of all tables of one rank together: a number of bytes, or text with "
        "a unit such as `4 GiB`. If a step would exceed it, training ends with an error before a row "
        "changes. Null sets no limit.",
    )
    overrides: dict[str, TableOverride] = Field(
        default_factory=dict,
        description="Settings of single tables, by name.",
    )

    def table_config(self, wanted: TableConfig) -> TableConfig:
        """Returns the configuration of a table: the model's, with the settings of this section.

        Args:
            wanted: name, dim, seed and initializer of the model; its dtype is ignored.
        """
        override = self.overrides.get(wanted.name, TableOverride())
        initializer = override.initializer or self.initializer or wanted.initializer
        if isinstance(initializer, OwnInitializer):
            initializer = initializer.initializer(wanted)
        admission = override.admission or self.admission
        return replace(
            wanted,
            dtype=self.dtype,
            initializer=initializer,
            admission=None if isinstance(admission, AllAdmission) else admission,
            placement=override.placement or self.placement,
            expire=override.expire or self.expire,
        )
