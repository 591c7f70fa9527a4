"""Declarations of the trainable tables of a service: the section `parameters` of its file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from sparring import Expiry, StorageChoice, TableConfig, Uniform
from sparring.adapter import parse_hyper, resolve_method
from sparring.contracts import (
    Admission,
    ByteCount,
    HyperParameters,
    Initializer,
    LocalPath,
    UpdateMethod,
    find_passwords,
    parse_admission,
    parse_initializer,
)
from sparring.errors import InvalidArgumentError, SparringError
from sparring_cli import DocumentModel

__all__ = [
    "ParametersConfig",
    "ReplicationConfig",
    "ScheduledSaveConfig",
    "StorageDeclaration",
    "TableDeclaration",
]


class StorageDeclaration(DocumentModel):
    """Storage of a table's rows."""

    backend: str = Field("hkv", description="A storage that `sparring plugins` lists.")
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the backend. In text, `{rank}`, `{world_size}` and `{table}` are "
        "replaced by the shard, the number of shards, and the table.",
    )


class TableDeclaration(DocumentModel):
    """Declaration of one table."""

    dim: Annotated[int, Field(ge=1, le=65_536)] = Field(description="Elements of an embedding.")
    update_method: str = Field(
        "adagrad",
        description="Method that applies gradients to rows; `sparring plugins` lists the methods.",
    )
    hyper: dict[str, Any] = Field(
        default_factory=dict,
        description="Hyper-parameters of the method; omitted ones have its defaults. A push can "
        "set `lr` for its own gradients. The other hyper-parameters do not change.",
    )
    dtype: Literal["float32", "float16", "bfloat16", "int8"] = Field(
        "float32",
        description="Data type of embeddings. Optimizer state is float32, and has 8 bits for int8.",
    )
    seed: int = Field(
        0, description="Determines initial values, together with the name of the table and the key."
    )
    initializer: Annotated[Initializer, BeforeValidator(parse_initializer)] = Field(
        Uniform(), description="Initial value of a key without a row: a name, or `{kind: …}`."
    )
    admission: Annotated[Admission | None, BeforeValidator(parse_admission)] = Field(
        None,
        description="Filter that determines which new keys get a row, `{kind: …}`; null: all keys.",
    )
    expire: Expiry | None = Field(
        None,
        description="Time without a push after which rows are removed: `{after_steps: …}` or "
        "`{after_days: …}`; null: never.",
    )
    storage: StorageDeclaration = Field(StorageDeclaration(), description="Storage of the rows.")

    @cached_property
    def method(self) -> UpdateMethod:
        return resolve_method(self.update_method)

    @cached_property
    def hyper_parameters(self) -> HyperParameters:
        return parse_hyper(self.method, self.hyper)

    def table(self, name: str) -> TableConfig:
        """Converts the declaration to a `TableConfig`.

        Args:
            name: Name of the table.

        Raises:
            InvalidArgumentError: A value is invalid for a table.
        """
        return TableConfig(
            name,
            self.dim,
            self.dtype,
            initializer=self.initializer,
            seed=self.seed,
            admission=self.admission,
            expire=self.expire,
        )

    @property
    def storage_choice(self) -> StorageChoice:
        return StorageChoice(self.storage.backend, self.storage.options)


class ScheduledSaveConfig(DocumentModel):
    """Saves that the service makes itself, in the first of `parameters.folders`. A client can also save
    at any time."""

    every_seconds: Annotated[float, Field(gt=0, le=31_536_000)] | None = Field(
        None,
        description="Interval at which the first shard saves all shards, unless nothing was pushed since "
        "the last scheduled save; null: only clients save.",
    )
    keep: Annotated[int, Field(ge=2, le=1_000_000)] = Field(
        3,
        description="Number of snapshots to keep in the folder. Only older scheduled ones are removed, "
        "whose names end with `.scheduled`.",
    )

    @model_validator(mode="after")
    def _is_scheduled(self) -> ScheduledSaveConfig:
        if self.every_seconds is None and "keep" in self.model_fields_set:
            raise ValueError(
                "keep has no effect without every_seconds, because no save is scheduled; set "
                "every_seconds, or remove keep"
            )
        return self


class ReplicationConfig(DocumentModel):
    """Followers of shards that `shards` lists with several replicas; requires
    `pip install 'sparring-serve[replication]'`."""

    store: str = Field(
        description="Store in which replicas agree on a leader, such as redis://10.0.0.9:6379/0, with "
        "`appendonly yes`. The environment variable REDIS_PASSWORD may contain a password.",
    )
    acks: Literal["leader", "follower"] = Field(
        "follower",
        description="A push is acknowledged when all followers in sync have logged it, or only the "
        "leader. If such a leader fails, clients receive `ShardRestartedError`.",
    )
    lease_seconds: Annotated[float, Field(ge=0.2, le=60)] = Field(
        2.0,
        description="Time for which a leader answers without contact to the store.",
    )
    without_follower: Literal["fail", "flag"] = Field(
        "fail",
        description="While no follower is in sync, pushes fail, or are flagged in "
        "`PushResult.unreplicated`.",
    )


class ParametersConfig(DocumentModel):
    """Trainable tables, and the folders of their snapshots."""

    tables: dict[str, TableDeclaration] = Field(min_length=1, description="Tables by name.")
    non_finite_gradients: Literal["raise", "skip"] = Field(
        "raise",
        description="`raise`: a push with NaN or infinity is rejected. `skip`: keys with such "
        "gradients are skipped and counted.",
    )
    folders: tuple[LocalPath, ...] = Field(
        ("parameters",),
        min_length=1,
        description="Folders of snapshots, as paths or URLs of fsspec; all shards must have access. "
        "Servers neither save to nor load from other folders. A name without a path is a "
        "snapshot in the first folder.",
    )
    start: str | None = Field(
        "newest",
        description="Snapshot that a server loads at its start. `newest`: the newest snapshot in the "
        "first folder if there is one; otherwise the name or URL of a snapshot; null: none.",
    )
    push_log: Path | None = Field(
        None,
        description="Local folder of the log of pushes since the last save, one per service. null: the "
        "path of the first folder with the suffix `.push-log`, or `push-log` in the working directory if "
        "the first folder is a URL.",
    )
    push_log_bytes: Annotated[ByteCount, Field(ge=0)] = Field(
        1 << 30,
        description="Maximum size of the push log of a shard. If it is full, pushes are not logged until "
        "the next save. 0: no log.",
    )
    push_log_sync_milliseconds: Annotated[float, Field(ge=0, le=3_600_000)] = Field(
        1000.0,
        description="Interval at which the push log is synchronized to the disk (fsync). It "
        "matters only after a power loss. 0: before each acknowledgement.",
    )
    queue_pushes: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        256,
        description="Maximum number of pushes that wait in a server; further pushes are rejected with "
        "RESOURCE_EXHAUSTED.",
    )
    queue_bytes: Annotated[ByteCount, Field(ge=1 << 16)] = Field(
        256 << 20,
        description="Maximum size of the pushes that wait; a single push is always accepted.",
    )
    max_clients: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        1024,
        description="Maximum number of clients whose push tokens are kept; above it, the client that "
        "was idle longest is forgotten.",
    )
    save_seconds: Annotated[float, Field(gt=0, le=86_400)] = Field(
        600.0,
        description="Maximum time of a save, a load, a flush or a move of partitions. Shards wait for "
        "each other for at most this time.",
    )
    save: ScheduledSaveConfig = ScheduledSaveConfig()
    replication: ReplicationConfig | None = Field(
        None,
        description="Store of the shard map, for `sparring resize`; required if a shard has several "
        "replicas.",
    )

    @field_validator("tables")
    @classmethod
    def _are_tables(cls, tables: Mapping[str, TableDeclaration]) -> Mapping[str, TableDeclaration]:
        for name, each in tables.items():
            try:
                each.table(name)
                assert each.hyper_parameters is not None
            except InvalidArgumentError as error:
                raise ValueError(f"table {name!r}: {error}") from None
            except SparringError as error:
                raise ValueError(f"table {name!r}: {error}") from None
        return tables

    @property
    def push_log_folder(self) -> Path:
        """Folder of the push log."""
        if self.push_log is not None:
            return self.push_log
        first = self.folders[0].removeprefix("file://").rstrip("/")
        return Path("push-log" if "://" in first else f"{first}.push-log")

    @model_validator(mode="after")
    def _logs_pushes(self) -> ParametersConfig:
        if self.replication is not None and not self.push_log_bytes:
            raise ValueError(
                "replication needs the push log, which followers read; increase push_log_bytes, or "
                "remove replication"
            )
        return self

    @model_validator(mode="after")
    def _has_no_password(self) -> ParametersConfig:
        if any(next(find_passwords(each), None) for each in (*self.folders, self.start or "")):
            raise ValueError(
                "URLs of folders must not contain a password, because they are printed; remove it"
            )
        return self
