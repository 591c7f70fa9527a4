"""Inputs of a plan: the ranks and their links, the tables and their ids, and the costs."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache, cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from sparring import resolve_method
from sparring.contracts import UpdateMethod
from sparring.errors import ConfigError, SparringError
from sparring_plan.planning.document import Strict, read_document

__all__ = [
    "DEFAULT_KINDS",
    "KINDS",
    "Calibration",
    "Feature",
    "Growth",
    "Link",
    "PlanInputs",
    "StorageCosts",
    "TableSpec",
    "Topology",
    "read_inputs",
]

KINDS = (
    "column_wise",
    "data_parallel",
    "grid",
    "row_wise",
    "table_column_wise",
    "table_row_wise",
    "table_wise",
)
"""Kinds of sharding that the cost model knows, and training executes."""

Kind = Literal[
    "column_wise",
    "data_parallel",
    "grid",
    "row_wise",
    "table_column_wise",
    "table_row_wise",
    "table_wise",
]

DEFAULT_KINDS: tuple[Kind, ...] = ("data_parallel", "row_wise", "table_row_wise", "table_wise")
"""Kinds that are looked at where inputs name none: rows stay whole, in any storage and by any update."""

Transfer = Literal["rows", "pooled"]
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_COUPLED = frozenset({"group_ftrl", "lamb", "partial_rowwise_adam", "rowwise_adagrad"})


@cache
def _method(name: str) -> UpdateMethod:
    return resolve_method(name)


def _bytes_of(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9.]+)\s*(B|KiB|MiB|GiB|TiB)\s*", value)
    if match is None:
        raise ValueError("expected bytes, such as 64 GiB (B, KiB, MiB, GiB or TiB)")
    return int(float(match[1]) * _UNITS[match[2]])


Bytes = Annotated[int, BeforeValidator(_bytes_of), Field(gt=0)]


class Link(Strict):
    """A link, each way."""

    gbit: float = Field(gt=0)
    latency_us: float = Field(default=0, ge=0)


class Topology(Strict):
    """Equal nodes, each with as many ranks."""

    nodes: int = Field(gt=0, le=1 << 16)
    ranks_per_node: int = Field(gt=0, le=1 << 12)
    memory: dict[str, Bytes] = Field(min_length=1)
    """Kind of memory → bytes that a rank may use for tables."""
    near: Link = Link(gbit=40, latency_us=2)
    """Of a rank, to the others of its node."""
    far: Link = Link(gbit=10, latency_us=20)
    """Of a node, to other nodes; its ranks share it evenly."""
    message_us: float = Field(default=20, ge=0)
    """Time that a message costs each of its ends."""
    price_per_hour: float = Field(default=0, ge=0)
    """Of a node."""

    @property
    def num_ranks(self) -> int:
        return self.nodes * self.ranks_per_node


class Feature(Strict):
    """A column of samples whose ids look rows of the table up."""

    ids: float = Field(gt=0)
    """Ids of a sample, on average."""
    weighted: bool = False
    pooling: Literal["sum", "mean", "none"] = "sum"


class Growth(Strict):
    """New ids as days go by."""

    rows: int = Field(default=0, ge=0)
    """Rows of today."""
    per_day: float = Field(gt=0)
    """New ids a day."""
    horizon_days: float = Field(gt=0)
    admission: float = Field(default=1, gt=0, le=1)
    """Share of the new ids that the table's admission lets in."""


class TableSpec(Strict):
    """A table: its rows, its update method, and the ids that a sample asks for."""

    dim: int = Field(gt=0, le=1 << 16)
    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "float32"
    method: str = "sgd"
    state_elements: int | None = Field(default=None, ge=0)
    """Elements of state a row; where missing, the update method says."""
    features: dict[str, Feature] = Field(min_length=1)
    skew: float = Field(default=1.05, ge=0, le=4)
    """The exponent of Zipf's law; 0: all ids alike."""
    rows: int | None = Field(default=None, gt=0, le=10**15)
    growth: Growth | None = None

    @model_validator(mode="after")
    def _check(self) -> TableSpec:
        if (self.rows is None) == (self.growth is None):
            raise ValueError("give either rows or growth")
        if self.state_elements is None:
            try:
                _method(self.method)
            except SparringError as error:
                raise ValueError(
                    f"method: {error}; or give state_elements, as a method of your own needs"
                ) from None
        return self

    @cached_property
    def expected_rows(self) -> int:
        """Rows at the horizon."""
        if self.growth is None:
            return self.rows or 1
        new = self.growth.per_day * self.growth.horizon_days * self.growth.admission
        return max(1, self.growth.rows + int(new))

    @cached_property
    def state_width(self) -> int:
        if self.state_elements is not None:
            return self.state_elements
        return _method(self.method).state_width(self.dim)

    @property
    def element_bytes(self) -> int:
        return _ELEMENT_BYTES[self.dtype]

    @property
    def couples_columns(self) -> bool:
        """True where an update of some columns needs the others: no column blocks."""
        return self.method in _COUPLED

    @property
    def ids_per_sample(self) -> float:
        return sum(feature.ids for feature in self.features.values())

    @property
    def is_pooled(self) -> bool:
        return all(feature.pooling != "none" for feature in self.features.values())


class StorageCosts(Strict):
    """Costs of a storage, a rank; times in nanoseconds."""

    memory: str
    find_ns: float = Field(ge=0)
    find_ns_per_byte: float = Field(ge=0)
    update_ns: float = Field(ge=0)
    update_ns_per_element: float = Field(ge=0)
    key_bytes: float = Field(ge=0)
    overhead: float = Field(ge=1)


class ExchangeCosts(Strict):
    """Costs and sizes of the exchange."""

    memory: str
    add_ns: float = Field(ge=0)
    pool_ns_per_byte: float = Field(ge=0)
    chunk_rows: int = Field(gt=0)
    chunks_in_flight: int = Field(gt=0)


class Calibration(Strict):
    """Costs of storages and of the exchange; the default `calibration.yaml` explains each entry."""

    name: str
    storages: dict[str, StorageCosts] = Field(min_length=1)
    exchange: ExchangeCosts


class PlanInputs(Strict):
    """One file: what a plan is made from."""

    topology: Topology
    samples: int = Field(gt=0)
    """Samples of a rank's batch."""
    tables: dict[str, TableSpec] = Field(min_length=1)
    kinds: list[Kind] = Field(default=list(DEFAULT_KINDS), min_length=1)
    transfers: list[Transfer] = Field(default=["rows"], min_length=1)
    calibration: str | None = None
    """A file of costs, from the folder of this one; where missing, the default file."""

    def digest(self, calibration: Calibration) -> str:
        """Of all that a plan depends on."""
        # Sorted: the order of tables in a file changes no plan.
        held = [self.model_dump(exclude={"calibration"}), calibration.model_dump()]
        text = json.dumps(held, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read_inputs(path: str | Path) -> tuple[PlanInputs, Calibration]:
    """Reads the inputs, and the calibration that they name or the default one.

    Raises:
        ConfigError: a file cannot be read, or is wrong: ``file:line:column: message``.
    """
    document = read_document(path)
    inputs = document.as_model(PlanInputs)
    if inputs.calibration is not None:
        calibration = read_document(Path(path).parent / inputs.calibration).as_model(Calibration)
    else:
        with as_file(files("sparring_plan.planning") / "calibration.yaml") as default:
            calibration = read_document(default).as_model(Calibration)
    held = inputs.topology.memory
    if not any(storage.memory in held for storage in calibration.storages.values()):
        known = sorted({storage.memory for storage in calibration.storages.values()})
        raise ConfigError(
            f"{document.place(('topology', 'memory'))}: no storage of the calibration "
            f"{calibration.name} keeps rows in {', '.join(held)}; its storages use "
            f"{', '.join(known)}"
        )
    return inputs, calibration
