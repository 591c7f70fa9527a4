"""How tables are kept: the `tables` section."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from sparring import MOST_BYTES, bytes_from_text
from sparring.contracts import Expiry, TableConfig
from sparring.errors import InvalidArgumentError
from sparring_train.config.admission import AdmissionConfig
from sparring_train.config.initializer import InitializerConfig
from sparring_train.config.section import PositiveFloat, Section

__all__ = ["TableOverride", "TablesConfig"]


def _number_of_bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return bytes_from_text(value)
    except InvalidArgumentError as error:
        raise PydanticCustomError(
            "number_of_bytes", "{words}", {"words": str(error).partition(", ")[2]}
        ) from error


class ExpireConfig(Section):
    """Rows that no step has trained for some time are removed: by one of the two limits. A run that
    goes on counts from its snapshot; reads are no training.
    """

    after_steps: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Steps without training. A row stays for an eighth longer at most. Null: any "
        "number.",
    )
    after_days: PositiveFloat | None = Field(
        None,
        description="Days without training, by the clock of rank 0, which is looked at every 100 "
        "steps. Null: any number.",
    )

    @model_validator(mode="after")
    def _has_a_limit(self) -> ExpireConfig:
        if self.after_steps is None and self.after_days is None:
            raise ValueError("give after_steps or after_days, or both")
        return self


class TableOverride(Section):
    """Settings of one table that differ from those of all."""

    initializer: InitializerConfig | None = Field(
        None,
        description="What a key reads as before it has a row: a mapping, or a name. Null takes "
        "what all tables have.",
    )
    admission: AdmissionConfig | None = Field(
        None,
        description="Which unseen ids earn a row. Null takes what all tables have; `all` admits "
        "every id.",
    )
    placement: Literal["sharded", "replicated"] | None = Field(
        None, description="Which ranks keep its rows. Null takes what all tables have."
    )
    expire: ExpireConfig | None = Field(
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
    initializer: InitializerConfig | None = Field(
        None,
        description="What a key reads as before it has a row: a mapping, or a name for the "
        "defaults of that kind. Null takes what the model wants.",
    )
    admission: AdmissionConfig | None = Field(
        None, description="Which unseen ids earn a row. Null admits every id."
    )
    placement: Literal["sharded", "replicated"] = Field(
        "sharded",
        description="Which ranks keep the rows. `sharded`: one rank keeps a row. `replicated`: "
        "every rank keeps all rows, lookups touch no wire, and each rank sends its gradients to "
        "all others; for small tables. The storage of such a table must not evict.",
    )
    expire: ExpireConfig | None = Field(
        None,
        description="After how long without training rows are removed; snapshots that are deltas "
        "have them as erased. Null keeps them.",
    )
    memory_bytes: Annotated[
        Annotated[int, Field(ge=1, le=MOST_BYTES)] | None, BeforeValidator(_number_of_bytes)
    ] = Field(
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
        initializer = override.initializer or self.initializer
        admission = override.admission or self.admission
        expire = override.expire or self.expire
        return replace(
            wanted,
            dtype=self.dtype,
            initializer=initializer.initializer(wanted) if initializer else wanted.initializer,
            admission=admission.admission() if admission else None,
            placement=override.placement or self.placement,
            expire=Expiry(**expire.model_dump()) if expire else None,
        )
