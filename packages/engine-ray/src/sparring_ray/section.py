"""The section `data` of the kind `ray`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from sparring_train import ColumnSettings

__all__ = ["RayData"]

_Name = Annotated[str, Field(min_length=1)]


class RayData(ColumnSettings):
    """Rows of Ray Datasets that `sparring_ray.train` received. Integers are used as ids unchanged.
    Strings are hashed to ids by `sparring.hash_strings`."""

    kind: Literal["ray"]
    train: _Name = Field("train", description="Name of the Dataset to train on.")
    test: _Name | None = Field(
        None, description="Name of the Dataset to evaluate; null: the run has no metrics."
    )
    types: dict[_Name, Literal["integer", "unsigned", "hexadecimal", "string"]] = Field(
        default_factory=dict,
        description="Type of a column of `categorical`, if its values have several meanings; see "
        "`data.types` of the kind `table`.",
    )
    shuffle_rows: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Number of rows in the memory of a worker among which rows are shuffled. 0: in the "
        "order of the Dataset.",
    )
    batch_size: Annotated[int, Field(ge=1)] = Field(
        4096,
        description="Rows per step, over all workers and micro-batches, rounded down to a multiple of "
        "the number of workers.",
    )

    @property
    def has_test(self) -> bool:
        return self.test is not None

    @property
    def id_types(self) -> Mapping[str, Literal["integer", "unsigned", "hexadecimal", "string"]]:
        return self.types
