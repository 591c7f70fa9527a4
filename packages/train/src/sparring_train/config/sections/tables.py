"""How tables are kept: the `tables` section."""

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
    """A class of one's own, which chooses one of the other kinds for each table. Any other key goes to
    it as it stands.

    It is derived from `sparring.contracts.Initializer`, or has a method `initializer(table)`, which is
    called with the `TableConfig` of a table and returns an `Initializer` of this project.
    """

    model_config = ConfigDict(extra="allow")

    kind: ClassName

    def initializer(self, table: TableConfig) -> Initializer:
        """The initializer of a table.

        Raises:
            ConfigError: there is no such class, it does not accept its arguments, or returns something
                else.
        """
        setting = "tables.initializer"
        found: type[Any] = find_class(self.kind, setting)
        if not issubclass(found, Initializer):
            found = find_class(self.kind, setting, methods=("initializer",))
        made: Any = create(found, self.kind, setting, options=self.model_extra or {})
        if not isinstance(made, Initializer):
            made = made.initializer(table)
        # Kernels compute initial values, and a snapshot names their kind.
        if type(made) not in INITIALIZERS.values():
            kinds = ", ".join(each.__name__ for each in INITIALIZERS.values())
            raise ConfigError(
                f"{setting}: {self.kind} made a {type(made).__name__} for table {table.name!r}, expected "
                f"one of {kinds} of sparring.contracts; return one of these",
                setting=setting,
            )
        chosen: Initializer = made
        return chosen


class AllAdmission(Section):
    """Every id, in the first step that trained on it: for a table that has no filter among others
    that have one.
    """

    kind: Literal["all"]


if TYPE_CHECKING:
    _InitializerChoice = Initializer | OwnInitializer
    _AdmissionChoice = Admission | AllAdmission
else:
    _InitializerChoice = choice_type({**INITIALIZERS, OWN: OwnInitializer}, find_tag)
    _AdmissionChoice = choice_type({"all": AllAdmission, **ADMISSIONS})


class TableOverride(Section):
    """Settings of one table that differ from those of all."""

    initializer: _InitializerChoice | None = Field(
        None,
        description="What a key reads as before it has a row: a mapping, or a name. Null takes "
        "what all tables have.",
    )
    admission: _AdmissionChoice | None = Field(
        None,
        description="Which unseen ids earn a row. Null takes what all tables have; `all` admits "
        "every id.",
    )
    placement: Literal["sharded", "replicated"] | None = Field(
        None, description="Which ranks keep its rows. Null takes what all tables have."
    )
    expire: Expiry | None = Field(
        None,
        description="After how long without training rows are removed. Null takes what all tables "
        "have.",
    )


class TablesConfig(Section):
    """Settings of all tables, and of single ones that differ.

    The model says which tables there are, and of which dim. A model of kind
    `matrix_factorization` has the tables `user` and `item`, one of kind `dlrm` has a table for each
    categorical column of the log.
    """

    dtype: Literal["float32", "float64", "float16", "bfloat16"] = Field(
        "float32",
        description="The type of embeddings. The optimizer's state, and all that is computed with, "
        "is `float64` for `float64` and `float32` for all others. Embeddings of 16 bits are "
        "rounded stochastically when they are updated.",
    )
    initializer: _InitializerChoice | None = Field(
        None,
        description="What a key reads as before it has a row: a mapping, or a name for the "
        "defaults of that kind. Null takes what the model wants.",
    )
    admission: _AdmissionChoice | None = Field(
        None, description="Which unseen ids earn a row. Null admits every id."
    )
    placement: Literal["sharded", "replicated"] = Field(
        "sharded",
        description="Which ranks keep the rows. `sharded`: one rank keeps a row. `replicated`: "
        "every rank keeps all rows, lookups touch no wire, and each rank sends its gradients to "
        "all others; for small tables. The storage of such a table must not evict.",
    )
    expire: Expiry | None = Field(
        None,
        description="After how long without training rows are removed; snapshots that are deltas "
        "have them as erased. Null keeps them.",
    )
    memory_bytes: Annotated[ByteCount, Field(ge=1)] | None = Field(
        None,
        description="The most memory that all tables of one rank may hold together: a number of "
        "bytes, or text with a unit, as `4 GiB`. It is looked at before each step is written: past "
        "it training ends with an error before any row changes. Null sets no limit.",
    )
    overrides: dict[str, TableOverride] = Field(
        default_factory=dict,
        description="Table → what it does differently.",
    )

    def table_config(self, wanted: TableConfig) -> TableConfig:
        """The table that a model wants, with this section's settings in place of its own.

        Args:
            wanted: the model's name, dim, seed and initializer; its dtype is not used.
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
