"""The `publish` section: versions of the model for servers, while it is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sparring.contracts import LocalPath
from sparring_train.config.section import BackendOptions, PositiveFloat, Section
from sparring_train.config.sections.columns import Name
from sparring_train.config.sections.gate import GateConfig

__all__ = ["PublishConfig"]


class PublishConfig(Section):
    """Publishes the tables, the ordinary parameters and the preprocessing of the model as one version
    for `sparring serve`, while training continues. A due step saves a snapshot, and a separate
    process converts it. Requires `snapshots.url` and sparring-serve.
    """

    url: LocalPath | None = Field(
        None,
        min_length=1,
        description="Folder of serving snapshots: a path, or a URL of fsspec. Null publishes nothing. "
        "Relative paths start at the folder of the configuration file.",
    )
    every_seconds: PositiveFloat = Field(
        10.0,
        description="Seconds of event time between versions. Data that are not a stream have no event "
        "time, and use the clock. A version is skipped while the previous one is being written.",
    )
    quantize: dict[Name, Literal["fp32", "fp16", "bf16", "int8", "int4"]] = Field(
        default_factory=dict,
        description="Data type of the rows of a table, `*` for all other tables: `{item: int8}`.",
    )
    full_every: Annotated[int, Field(ge=1, le=32)] = Field(
        8, description="Number of versions of which at least one is full; the others are deltas."
    )
    max_delta_share: Annotated[float, Field(ge=0, le=100)] = Field(
        1.0,
        description="A version is full if the deltas before it have more rows than this share of the "
        "last full one. Servers keep both in memory.",
    )
    item_vectors: bool = Field(
        True,
        description="For a model that ranks items by vectors which are not rows, such as two towers with "
        "`layers`: also publishes the vectors of all items, as a table `<item>.vectors`. They change "
        "in each version, so that a version takes longer the more items there are.",
    )
    keep: Annotated[int, Field(ge=2, le=1_000_000)] = Field(
        3, description="Number of versions to keep, in addition to the versions that they need."
    )
    notify: Annotated[tuple[Name, ...], Field(strict=False)] = Field(
        (),
        description="Addresses of servers, `host:port`, that are told to read each new version at once. "
        "Other servers find it at their next check.",
    )
    notify_seconds: PositiveFloat = Field(
        5.0,
        description="Maximum time for which a publication waits for the replies of these servers.",
    )
    gate: GateConfig | None = Field(
        None,
        description="Withholds versions of a model that got worse, and makes servers return to a good "
        "one; `{}` uses the defaults. Null: every version is published.",
    )
    client: BackendOptions = Field(
        default_factory=dict,
        description="Connection to these servers: keys of the section `client` of the lookup service, "
        "such as `{token_file: token, tls: {ca_file: ca.pem}}`. The role must be `admin`.",
    )
