"""``sparring lookup``: looks up rows in a running service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from sparring import hash_strings
from sparring_cli import ExitCode, JsonOption, add_command, print_json
from sparring_serve.client.lookup_client import LookupClient
from sparring_serve.config import ClientConfig, TlsFiles, read_serving_config

__all__ = ["add_lookup"]


def add_lookup(application: typer.Typer) -> None:
    add_command(
        application,
        "lookup",
        lookup,
        examples=[
            "sparring lookup localhost:7433 item 7 -1",
            "sparring lookup serving.yaml item shoe --missing zero --deadline 2 --json",
        ],
        accepts_negative_numbers=True,
    )


def lookup(  # noqa: PLR0913, PLR0917 (each is an option of the command line)
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="host:port, or the YAML file of the service."),
    ],
    table: Annotated[str, typer.Argument(help="Name of the table.")],
    ids: Annotated[
        list[str],
        typer.Argument(
            help="Ids: integers, or strings, which are hashed. A number without a row is read as "
            "a string."
        ),
    ],
    missing: Annotated[
        str,
        typer.Option(
            help="Value of keys without a row: initial or zero; only_found: zero, without sending them."
        ),
    ] = "initial",
    version: Annotated[str, typer.Option(help="Hash of a kept version.")] = "",
    deadline: Annotated[float, typer.Option(help="Deadline in seconds.")] = 5.0,
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates to trust; encrypts the connection.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File whose first line is the token.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow plain text to other machines.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Look up rows of a table in a running service; exit with 3 if no id has a row."""
    keys = [_id_of(each) for each in ids]
    if target.endswith((".yaml", ".yml")):
        config = read_serving_config(target)
        client = LookupClient(config.shard_map, config.client)
    else:
        tls = None if ca_file is None else TlsFiles(ca_file=ca_file)
        client = LookupClient(
            target, ClientConfig(tls=tls, token_file=token_file, insecure=insecure)
        )
    # A column of strings may contain numbers, and the service does not know the column.
    hashed = hash_strings(ids).tolist()
    with client:
        answer = client.pull(
            {table: [*keys, *hashed]}, missing=missing, version=version, deadline_seconds=deadline
        )
    own_rows, text_rows = np.split(answer.rows[table], 2)
    is_found, is_text = np.split(answer.found[table], 2)
    is_text = is_text & ~is_found
    keys = np.where(is_text, hashed, keys).tolist()
    rows, found = np.where(is_text[:, None], text_rows, own_rows), is_found | is_text
    if as_json:
        print_json(
            {
                "table": table,
                "ids": keys,
                "rows": rows.tolist(),
                "found": found.tolist(),
                "step": None if answer.version is None else answer.version.step,
                "version": None if answer.version is None else answer.version.hash,
                "age_seconds": answer.age_seconds,
            }
        )
    else:
        if answer.version is not None:
            typer.echo(
                f"step {answer.version.step:,}, version {answer.version.hash}, "
                f"published {answer.age_seconds:,.1f} s ago"
            )
        for number, has_row, row in zip(ids, found.tolist(), rows.tolist(), strict=True):
            shown = " ".join(f"{value:.6g}" for value in row)
            typer.echo(f"{number}{'' if has_row else ' (no row)'}: {shown}")
    if not found.any():
        raise typer.Exit(ExitCode.NOT_FOUND)


def _id_of(text: str) -> int:
    """Converts a word of the command line to an id. An unsigned number of at least 2^63 means the id with
    the same 64 bits, as for `sparring get`."""
    if re.fullmatch("0|-?[1-9][0-9]*", text) is None:  # 0007 is a string, too
        return int(hash_strings([text])[0])
    number = int(text)
    if not -(2**63) <= number < 2**64:
        raise typer.BadParameter(
            f"{text} does not fit into 64 bits; an id is an int64, or an unsigned number below 2^64"
        )
    return number - 2**64 if number >= 2**63 else number
