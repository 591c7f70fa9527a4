"""Inputs of a plan: the ranks and their links, the tables and their ids, and the costs.

The file is long because it declares all sections of two documents, the inputs and the calibration.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import date
from functools import cache, cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from sparring.adapter import resolve_method
from sparring.contracts import UpdateMethod
from sparring.errors import ConfigError, SparringError
from sparring_cli import Document, DocumentModel, read_document
from sparring_plan.planning.costs.sketch import Sketch, read_sketch

__all__ = [
    "WHOLE_ROW_KINDS",
    "KINDS",
    "Calibration",
    "Feature",
    "Growth",
    "Link",
    "MachineCosts",
    "PlanInputs",
    "RowCosts",
    "SketchFile",
    "Stack",
    "StepCosts",
    "StorageCosts",
    "TableSpec",
    "Tier",
    "Topology",
    "UpdateCosts",
    "read_inputs",
    "with_machine",
]

Kind = Literal[
    "column_wise",
    "data_parallel",
    "grid",
    "row_wise",
    "table_column_wise",
    "table_row_wise",
    "table_wise",
]

KINDS: tuple[Kind, ...] = (
    "column_wise",
    "data_parallel",
    "grid",
    "row_wise",
    "table_column_wise",
    "table_row_wise",
    "table_wise",
)
"""Sharding kinds that the cost model and training support."""

WHOLE_ROW_KINDS: tuple[Kind, ...] = ("data_parallel", "row_wise", "table_row_wise", "table_wise")
"""Kinds that do not split columns, for any storage and any update method."""

Transfer = Literal["rows", "pooled"]
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
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


class Link(DocumentModel):
    """Bandwidth and latency of a link, which apply to each direction."""

    gbit: float = Field(gt=0)
    latency_us: float = Field(default=0, ge=0)


class Topology(DocumentModel):
    """Identical nodes with the same number of ranks."""

    nodes: int = Field(gt=0, le=1 << 16)
    ranks_per_node: int = Field(gt=0, le=1 << 12)
    memory: dict[str, Bytes] = Field(min_length=1)
    """Kind of memory → bytes that a rank may use for tables."""
    near: Link = Link(gbit=40, latency_us=2)
    """Link of a rank to the other ranks of its node."""
    far: Link = Link(gbit=10, latency_us=20)
    """Link of a node to other nodes, shared evenly by its ranks."""
    message_us: float = Field(default=20, ge=0)
    """Time per message at each of its ends."""
    price_per_hour: float = Field(default=0, ge=0)
    """Price per node."""
    cores: float | None = Field(default=None, gt=0)
    """Processor cores of a node. With fewer than two per rank, a rank transfers its messages with the
    core that computes. If it is unknown, both overlap."""

    @property
    def num_ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def has_one_core(self) -> bool:
        """Whether a rank has fewer than two cores."""
        return self.cores is not None and self.cores < 2 * self.ranks_per_node


class Feature(DocumentModel):
    """An input column whose ids look up rows of the table."""

    ids: float = Field(gt=0)
    """Average number of ids per sample."""
    weighted: bool = False
    pooling: Literal["sum", "mean", "max", "none"] = "sum"


class Growth(DocumentModel):
    """Growth by new ids."""

    rows: int = Field(default=0, ge=0)
    """Current number of rows."""
    per_day: float = Field(gt=0)
    """New ids per day."""
    horizon_days: float = Field(gt=0)
    admission: float = Field(default=1, gt=0, le=1)
    """Share of the new ids that the table admits."""
    expire_days: float | None = Field(default=None, gt=0)
    """TTL of a row since its last access; an id that returns later is a new one."""

    def rows_on(self, day: float) -> float:
        """Returns the number of rows after `day` days. Assumes that the current rows were created
        evenly over one TTL."""
        arrived = self.per_day * self.admission
        if self.expire_days is None:
            return self.rows + arrived * day
        lived = min(day / self.expire_days, 1.0)
        return self.rows * (1 - lived) + arrived * self.expire_days * lived


class SketchFile(DocumentModel):
    """A file written by `sparring plan sketch`."""

    sketch: str
    """Path, relative to the folder of the inputs."""


class Tier(DocumentModel):
    """A tier of a stack, such as ``hkv: 8 GiB`` or ``hkv: 10 %``; the last tier has only a name."""

    storage: str
    bytes: int | None = Field(default=None, gt=0)
    """Maximum memory per rank and table."""
    share: float | None = Field(default=None, gt=0, le=1)
    """Share of a rank's rows."""

    @property
    def name(self) -> str:
        if self.bytes is not None:
            unit = max((each for each in _UNITS.items() if each[1] <= self.bytes), key=_size_of)
            return f"{self.storage} {self.bytes / unit[1]:.4g} {unit[0]}"
        return self.storage if self.share is None else f"{self.storage} {self.share * 100:g} %"


def _size_of(unit: tuple[str, int]) -> int:
    return unit[1]


def _tier_of(value: Any) -> Any:
    if isinstance(value, str):
        return {"storage": value}
    if not isinstance(value, dict) or len(value) != 1 or "storage" in value:
        return value
    ((name, budget),) = value.items()
    share = re.fullmatch(r"\s*([0-9.]+)\s*%\s*", budget) if isinstance(budget, str) else None
    if share is not None:
        return {"storage": name, "share": float(share[1]) / 100}
    return {"storage": name, "bytes": _bytes_of(budget)}


class Stack(DocumentModel):
    """Storages of a table, hottest first."""

    tiers: list[Annotated[Tier, BeforeValidator(_tier_of)]] = Field(min_length=2, max_length=4)

    @model_validator(mode="after")
    def _is_bounded(self) -> Stack:
        *upper, last = self.tiers
        for tier in upper:
            if tier.bytes is None and tier.share is None:
                raise ValueError(
                    f"tier {tier.storage} is above the last and needs a budget, such as "
                    f"{{{tier.storage}: 8 GiB}} or {{{tier.storage}: 10 %}}"
                )
        if last.bytes is not None or last.share is not None:
            raise ValueError(
                f"the last tier, {last.storage}, keeps all rows: specify only its name"
            )
        return self

    @property
    def name(self) -> str:
        return " + ".join(tier.name for tier in self.tiers)


Storages = Annotated[list[str | Stack], Field(min_length=1)]
"""Names of the calibration's storages, and stacks of them."""


def _form_of_skew(value: Any) -> str:
    if isinstance(value, dict):
        return "sketch" if "bins" in value else "file"
    if isinstance(value, SketchFile):
        return "file"
    return "sketch" if isinstance(value, Sketch) else "exponent"


Skew = Annotated[
    Annotated[float, Field(ge=0, le=4), Tag("exponent")]
    | Annotated[SketchFile, Tag("file")]
    | Annotated[Sketch, Tag("sketch")],
    Discriminator(_form_of_skew),
]


class TableSpec(DocumentModel):
    """A table: its rows, its update method, and its ids per sample."""

    dim: int = Field(gt=0, le=1 << 16)
    dtype: Literal["float64", "float32", "bfloat16", "float16", "int8"] = "float32"
    method: str = "sgd"
    state_elements: int | None = Field(default=None, ge=0)
    """Number of state elements per row; by default, determined by the update method."""
    features: dict[str, Feature] = Field(min_length=1)
    skew: Skew = 1.05
    """Exponent of Zipf's law, 0 for a uniform distribution; or a sketch of the table's ids."""
    rows: int | None = Field(default=None, gt=0, le=10**15)
    growth: Growth | None = None
    storages: Storages | None = None
    """Possible storages of the table; by default, the storages of the inputs."""

    @model_validator(mode="after")
    def _check(self) -> TableSpec:
        if (self.rows is None) == (self.growth is None):
            found = "neither" if self.rows is None else "both"
            raise ValueError(f"found {found} of rows and growth; specify one of them")
        if self.state_elements is None:
            try:
                _method(self.method)
            except SparringError as error:
                raise ValueError(
                    f"method: {error}; for a custom method, specify state_elements"
                ) from None
        return self

    @cached_property
    def expected_rows(self) -> int:
        """Number of rows at the horizon. If rows expire and there are more rows now, the current
        number."""
        if self.growth is None:
            return self.rows or 1
        last = int(self.growth.rows_on(self.growth.horizon_days))
        return max(1, last, self.growth.rows if self.growth.expire_days else 0)

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
        """Whether a column cannot be updated without other columns, which excludes column blocks."""
        return bool(self.why_coupled)

    @property
    def why_coupled(self) -> str:
        """Reason why columns cannot be updated separately; empty if they can."""
        if self.dtype == "int8":
            return "the columns of an int8 row share a scale"
        return f"{self.method} couples columns" if self.method in _COUPLED else ""

    @property
    def ids_per_sample(self) -> float:
        return sum(feature.ids for feature in self.features.values())

    @property
    def is_pooled(self) -> bool:
        return not self.of_rows

    @property
    def of_rows(self) -> list[str]:
        """Names of the features whose rows are transferred, because owners pool only sums and means."""
        owned = {"sum", "mean"}
        return [name for name, each in self.features.items() if each.pooling not in owned]


class UpdateCosts(DocumentModel):
    """Costs of an update method, in nanoseconds."""

    update_ns: float = Field(ge=0)
    update_ns_per_element: float = Field(ge=0)


class StorageCosts(DocumentModel):
    """Costs of a storage per rank, in nanoseconds."""

    memory: str
    backend: str | None = None
    """Storage backend; by default, the name of the entry."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the backend that affect the size of rows."""
    find_ns: float = Field(ge=0)
    find_ns_per_byte: float = Field(ge=0)
    update_ns: float = Field(ge=0)
    update_ns_per_element: float = Field(ge=0)
    methods: dict[str, UpdateCosts] = Field(default_factory=dict)
    """Update methods that were measured separately."""
    write_ns: float | None = Field(default=None, ge=0)
    """Time to write a row that the tier above evicted; by default, the time of an update."""
    latency_us: float = Field(default=0, ge=0)
    """Minimum time of a call, regardless of its number of rows."""
    iops: float | None = Field(default=None, gt=0)
    """Maximum number of rows per second and rank of the disk or the server."""
    key_bytes: float = Field(ge=0)
    overhead: float = Field(ge=1)


class RowCosts(DocumentModel):
    """Costs per row, in nanoseconds."""

    ns: float = Field(default=0, ge=0)
    ns_per_byte: float = Field(default=0, ge=0)
    """Costs per byte of the embedding."""

    def seconds(self, row_bytes: Any) -> Any:
        """Returns the seconds for a row of `row_bytes` bytes, or for an array of sizes."""
        return (self.ns + self.ns_per_byte * row_bytes) * 1e-9


class StepCosts(DocumentModel):
    """Costs of a step in addition to finds, sums, updates and messages."""

    step_us: float = Field(default=0, ge=0)
    """Costs per step."""
    table_us: float = Field(default=0, ge=0)
    """Costs per table: its lookup and its update."""
    way_us: float = Field(default=0, ge=0)
    """There are three ways to transfer rows: as rows, as replicas, or pooled by their owners. A
    step has these costs for each way that its tables use in addition to the first.
    """
    separate_us: float = Field(default=0, ge=0)
    """Costs per table if owners pool the bags of any table. Otherwise, calls are made for all tables
    together.
    """
    pooled_us: float = Field(default=0, ge=0)
    """Costs per table whose owners pool its bags, and per owner: its messages. Half of it is spent on
    the requesting rank and half on the owner."""
    ids: RowCosts = RowCosts()
    """Costs per id on the requesting rank: deduplication, copy of its row, sum of its gradient."""
    rows: RowCosts = RowCosts()
    """Costs per distinct key on the requesting rank: routing, copy of its row, packing of its
    gradient."""
    replicas: RowCosts = RowCosts()
    """Costs per gradient of any rank on each replica. The gradient is sent, copied, and added in
    the order of ranks."""
    bags: RowCosts = RowCosts()
    """Costs per part of a bag that an owner pools. Half of it is spent on the requesting rank and
    half on the owner."""
    bag_ids: RowCosts = RowCosts()
    """Costs per id of these bags, also in halves: routing and deduplication, sum of its gradient."""
    blocks: RowCosts = RowCosts()
    """Costs per gradient of a column block on its owner, because such rows are updated in arrays."""
    error: float = Field(default=0.25, ge=0)
    """Largest relative difference between the measured and the predicted ratio of two steps.
    ``plan="auto"`` uses a plan other than row_wise only if it is predicted to be faster by more.
    """

    def seconds(self, num_tables: int) -> float:
        """Returns the seconds of a step with `num_tables` tables, for any plan."""
        return (self.step_us + num_tables * self.table_us) * 1e-6

    def pooling_seconds(self, bags: Any, ids: Any, row_bytes: Any) -> Any:
        """Returns the seconds of a table whose owners pool, for one requester and one owner.

        Args:
            bags: Number of bags with an id of the owner.
            ids: Number of these ids.
            row_bytes: Bytes of a gradient.
        """
        rows = bags * self.bags.seconds(row_bytes) + ids * self.bag_ids.seconds(row_bytes)
        return self.pooled_us * 1e-6 + rows


class ExchangeCosts(DocumentModel):
    """Costs and sizes of the exchange."""

    memory: str
    add_ns: float = Field(ge=0)
    pool_ns_per_byte: float = Field(ge=0)
    steps: StepCosts = StepCosts()
    chunk_rows: int = Field(gt=0)
    chunks_in_flight: int = Field(gt=0)


class MachineCosts(DocumentModel):
    """Measurements of a machine, without its storages."""

    measured_over: str
    """Transport of messages and links: ``loopback``, or the ranks and the collective."""
    message_us: float = Field(ge=0)
    """Processor time per message at each of its ends."""
    transfer_ns_per_byte: float = Field(default=0, ge=0)
    """Processor time per byte at each of its ends; 0 if it was not measured."""
    cores: float | None = Field(default=None, gt=0)
    """Processor cores that this machine's ranks may use."""
    link_gbit: float = Field(gt=0)
    link_latency_us: float = Field(ge=0)
    memory_gigabytes_per_second: float = Field(gt=0)
    """Bandwidth of a triad: two arrays read, one written."""
    dense_ms: float = Field(default=0, ge=0)
    """Forward and backward pass of the dense model; added to each step."""
    dense_model: str = ""


class Calibration(DocumentModel):
    """Costs of storages and of the exchange; the default `calibration.yaml` explains each entry."""

    name: str
    date: str = ""
    """Date of the measurement."""
    storages: dict[str, StorageCosts] = Field(min_length=1)
    exchange: ExchangeCosts
    machine: MachineCosts | None = None


class PlanInputs(DocumentModel):
    """The file with the inputs of a plan."""

    topology: Topology
    samples: int = Field(gt=0)
    """Batch size per rank."""
    tables: dict[str, TableSpec] = Field(min_length=1)
    kinds: list[Kind] = Field(default=list(get_args(Kind)), min_length=1)
    transfers: list[Transfer] = Field(default=["pooled", "rows"], min_length=1)
    storages: Storages | None = None
    """Possible storages of tables; by default, all storages of the calibration that fit."""
    start: date | None = None
    """First day of growth, so that a plan can contain the date when memory is full."""
    calibration: str | None = None
    """File of costs, relative to the folder of this file; by default, the default costs."""

    def digest(self, calibration: Calibration) -> str:
        """Returns a digest of everything that a plan depends on."""
        # Sorted, because the order of tables in a file does not affect a plan.
        held = [
            self.model_dump(mode="json", exclude={"calibration"}),
            calibration.model_dump(mode="json"),
        ]
        text = json.dumps(held, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read_inputs(path: str | Path) -> tuple[PlanInputs, Calibration]:
    """Reads the inputs, and their calibration or the default one.

    Raises:
        ConfigError: A file cannot be read, or is invalid: ``file:line:column: message``.
    """
    document = read_document(path)
    inputs = document.as_model(PlanInputs)
    if inputs.calibration is not None:
        costs = Path(path).parent / inputs.calibration
        if not costs.is_file():
            raise ConfigError(
                f"{document.location(('calibration',))}: calibration: there is no file {costs}; create "
                "one with sparring plan calibrate, or remove calibration to use the default costs"
            )
        calibration = read_document(costs).as_model(Calibration)
    else:
        with as_file(files("sparring_plan.planning") / "calibration.yaml") as default:
            calibration = read_document(default).as_model(Calibration)
    inputs = with_machine(inputs, calibration.machine)
    inputs = _with_sketches(inputs, Path(path).parent, document)
    _check_storages(inputs, calibration, document)
    held = inputs.topology.memory
    if not any(storage.memory in held for storage in calibration.storages.values()):
        known = sorted({storage.memory for storage in calibration.storages.values()})
        raise ConfigError(
            f"{document.location(('topology', 'memory'))}: no storage of the calibration "
            f"{calibration.name} keeps rows in {', '.join(held)}; use one of {', '.join(known)}"
        )
    return inputs, calibration


def with_machine(inputs: PlanInputs, machine: MachineCosts | None) -> PlanInputs:
    """Fills in settings that the topology does not specify: messages, the link within a node, cores."""
    if machine is None:
        return inputs
    topology = inputs.topology
    cores = machine.cores if topology.cores is None else topology.cores
    gbit = machine.link_gbit
    if machine.transfer_ns_per_byte and cores is not None and cores < 2 * topology.ranks_per_node:
        # The core that computes also transfers, at each end.
        gbit = 8 / machine.transfer_ns_per_byte
    link = Link(gbit=gbit, latency_us=machine.link_latency_us)
    measured = {"message_us": machine.message_us, "near": link, "cores": machine.cores}
    missing = {
        name: each for name, each in measured.items() if name not in topology.model_fields_set
    }
    return inputs.model_copy(update={"topology": topology.model_copy(update=missing)})


def _with_sketches(inputs: PlanInputs, folder: Path, document: Document) -> PlanInputs:
    """Replaces the file names of sketches by their contents."""
    tables = dict(inputs.tables)
    for name, spec in inputs.tables.items():
        if isinstance(spec.skew, SketchFile):
            try:
                sketch = read_sketch(folder / spec.skew.sketch)
            except ConfigError as error:
                location = document.location(("tables", name, "skew"))
                raise ConfigError(f"{location}: tables.{name}.skew: {error}") from None
            tables[name] = spec.model_copy(update={"skew": sketch})
    return inputs.model_copy(update={"tables": tables})


def _check_storages(inputs: PlanInputs, calibration: Calibration, document: Document) -> None:
    """Rejects storages that the calibration does not contain, and memory that ranks do not have."""
    given: list[tuple[tuple[str, ...], Sequence[str | Stack]]]
    given = [(("storages",), inputs.storages or [])]
    given += [
        (("tables", name, "storages"), spec.storages or []) for name, spec in inputs.tables.items()
    ]
    for path, choices in given:
        for location, choice in enumerate(choices):
            tiers = [choice] if isinstance(choice, str) else [each.storage for each in choice.tiers]
            for name in tiers:
                known = calibration.storages.get(name)
                if known is None:
                    document.raise_problem(
                        (*path, location),
                        f"the calibration {calibration.name} has no storage {name}; use one of "
                        f"{', '.join(sorted(calibration.storages))}",
                    )
                if known.memory not in inputs.topology.memory:
                    document.raise_problem(
                        (*path, location),
                        f"{name} keeps rows in {known.memory}, which is not in the topology; add "
                        f"{known.memory} to topology.memory",
                    )
