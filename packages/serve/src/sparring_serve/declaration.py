"""Declarations of the tables of a service that learns: the section `parameters` of its file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from sparring import StorageChoice, TableConfig, hyper_from, resolve_method
from sparring.contracts import (
    Admission,
    ByteCount,
    Expiry,
    HyperParameters,
    Initializer,
    LocalPath,
    Uniform,
    UpdateMethod,
    admission_from,
    initializer_from,
    passwords_in,
)
from sparring.errors import InvalidArgumentError, SparringError
from sparring_cli import DocumentModel

__all__ = ["ParametersConfig", "StorageDeclaration", "TableDeclaration"]


class StorageDeclaration(DocumentModel):
    """The storage of a table's rows."""

    backend: str = Field("hkv", description="A storage that `sparring plugins` lists.")
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Of the backend; in text `{rank}`, `{world_size}` and `{table}` stand for the shard, "
        "the number of shards, and the table.",
    )


class TableDeclaration(DocumentModel):
    """A table."""

    dim: Annotated[int, Field(ge=1, le=65_536)] = Field(description="Elements of an embedding.")
    update_method: str = Field(
        "adagrad", description="How gradients change rows; `sparring plugins` lists the methods."
    )
    hyper: dict[str, Any] = Field(
        default_factory=dict,
        description="Hyper-parameters of the method; those left out have its defaults. A push may come "
        "with an `lr` of its own; all others stay.",
    )
    dtype: Literal["float32", "float16", "bfloat16"] = Field(
        "float32", description="Of embeddings; state is float32."
    )
    seed: int = Field(0, description="Of initial values, with the table's name and the key.")
    initializer: Annotated[Initializer, BeforeValidator(initializer_from)] = Field(
        Uniform(), description="What a key reads as before it has a row: a name, or `{kind: …}`."
    )
    admission: Annotated[Admission | None, BeforeValidator(admission_from)] = Field(
        None, description="Which unseen keys earn a row, `{kind: …}`; null: all."
    )
    expire: Expiry | None = Field(
        None,
        description="After how long without a push rows are removed: `{after_steps: …}` or "
        "`{after_days: …}`; null: never.",
    )
    storage: StorageDeclaration = Field(StorageDeclaration(), description="Where rows are.")

    @cached_property
    def method(self) -> UpdateMethod:
        return resolve_method(self.update_method)

    @cached_property
    def hyper_parameters(self) -> HyperParameters:
        return hyper_from(self.method, self.hyper)

    def table(self, name: str) -> TableConfig:
        """As core declares it."""
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


class ParametersConfig(DocumentModel):
    """Tables that learn, and where they are saved."""

    tables: dict[str, TableDeclaration] = Field(min_length=1, description="Tables by name.")
    non_finite_gradients: Literal["raise", "skip"] = Field(
        "raise",
        description="A push with NaN or infinity is refused, or those of its keys are left out and "
        "counted.",
    )
    folders: tuple[LocalPath, ...] = Field(
        ("parameters",),
        min_length=1,
        description="Folders that hold snapshots, as paths or URLs of fsspec; all shards reach them. "
        "Others are neither saved to nor loaded from. A name alone is one in the first.",
    )
    start: str | None = Field(
        "newest",
        description="What a server begins with: `newest`, the newest snapshot of the first folder, if "
        "there is one; the name or URL of another; null: no rows.",
    )
    push_log: Path | None = Field(
        None,
        description="Local folder of the log of pushes since the last save, one per service, from which "
        "a server that was killed resumes; null: the first folder's path with `.push-log` at its end, or "
        "`push-log` in the working directory if the first folder is a URL.",
    )
    push_log_bytes: Annotated[ByteCount, Field(ge=0)] = Field(
        1 << 30,
        description="Bytes of the push log of a shard. Past it pushes are not logged until the next "
        "save, with a warning; 0: no log.",
    )
    push_log_sync_milliseconds: Annotated[float, Field(ge=0, le=3_600_000)] = Field(
        1000.0,
        description="How often the push log is written to the disk itself (fsync), which only a power "
        "loss needs; 0: before each acknowledgement.",
    )
    queue_pushes: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        256, description="Pushes that wait in a server; more are refused, RESOURCE_EXHAUSTED."
    )
    queue_bytes: Annotated[ByteCount, Field(ge=1 << 16)] = Field(
        256 << 20, description="Bytes of pushes that wait; one alone always has room."
    )
    most_clients: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        1024,
        description="Clients whose push tokens are kept; past it the one idle longest is forgotten.",
    )
    save_seconds: Annotated[float, Field(gt=0, le=86_400)] = Field(
        600.0,
        description="How long a save, a load or a flush may take; shards wait that long for each other.",
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
        """Where the push log is."""
        if self.push_log is not None:
            return self.push_log
        first = self.folders[0].removeprefix("file://").rstrip("/")
        return Path("push-log" if "://" in first else f"{first}.push-log")

    @model_validator(mode="after")
    def _has_no_password(self) -> ParametersConfig:
        if any(next(passwords_in(each), None) for each in (*self.folders, self.start or "")):
            raise ValueError("URLs of folders must hold no password, because they are printed")
        return self
