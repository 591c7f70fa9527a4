"""``sparring convert``: converts the rows of a table to another update method."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from sparring import PluginManager, TableConfig, open_storage
from sparring.adapter import copy_embeddings, parse_hyper, resolve_method
from sparring.errors import InvalidArgumentError
from sparring_cli.context import get_command_context
from sparring_cli.output import print_json
from sparring_cli.registration import JsonOption, add_command

__all__ = ["add_convert"]

_STATE = "an update method, 'none', or the number of state elements of another optimizer"


def add_convert(application: typer.Typer) -> None:
    add_command(
        application,
        "convert",
        convert,
        examples=[
            "sparring convert rocksdb item --dim 16 --from adagrad --from-option path=rows "
            "--to adam --to-option path=rows-converted",
            "sparring convert rocksdb item --dim 16 --from 16 --from-option path=rows --to none "
            "--to-option path=embeddings --json",
        ],
    )


def convert(  # noqa: PLR0913, PLR0917 - typer makes the options of these
    context: typer.Context,
    backend: Annotated[str, typer.Argument(help="Storage backend, for example 'sqlite'.")],
    table: Annotated[str, typer.Argument(help="Name of the table.")],
    dim: Annotated[int, typer.Option(help="Number of elements of an embedding.")],
    source: Annotated[
        str, typer.Option("--from", help=f"Optimizer of the existing rows: {_STATE}.")
    ],
    target: Annotated[str, typer.Option("--to", help=f"Optimizer of the new rows: {_STATE}.")],
    from_option: Annotated[
        list[str], typer.Option(help="Option of the storage to read, name=value.")
    ],
    to_option: Annotated[
        list[str], typer.Option(help="Option of the storage to write, name=value.")
    ],
    dtype: Annotated[str, typer.Option(help="Data type of the rows.")] = "float32",
    hyper: Annotated[
        list[str] | None,
        typer.Option(help="Hyper-parameter that the initial state depends on, name=value."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a table's embeddings to another storage, with the initial state of another optimizer."""
    manager = get_command_context(context).plugin_manager
    plain = TableConfig(table, dim, dtype)
    old = _with_state(plain, source, {}, manager)[0]
    new, state = _with_state(plain, target, _pairs(hyper or []), manager)
    read, written = _pairs(from_option), _pairs(to_option)
    if read == written:
        raise InvalidArgumentError(
            "convert: --from-option and --to-option specify the same storage, "
            f"{read}; write to another one"
        )
    with (
        open_storage(backend, old, plugin_manager=manager, **read) as given,
        open_storage(backend, new, plugin_manager=manager, **written) as made,
    ):
        if made.size:
            raise InvalidArgumentError(
                f"convert: the storage to write contains {made.size} rows; use an empty one"
            )
        count = copy_embeddings(given, made, state)
        made.flush()
    if as_json:
        print_json({"table": table, "rows": count, "from": old.row_label, "to": new.row_label})
    else:
        typer.echo(f"{count:,} rows of table {table!r}: {old.row_label} -> {new.row_label}")


def _with_state(
    table: TableConfig, name: str, hyper: dict[str, Any], manager: PluginManager
) -> tuple[TableConfig, npt.NDArray[Any]]:
    if name == "none" or name.isdigit():
        width = 0 if name == "none" else int(name)
        made = table.with_state(width)
        return made, np.zeros(width, made.computing_dtype)
    method = resolve_method(name, manager)
    checked = parse_hyper(method, hyper)
    made = table.with_state(method.state_width(table.dim), method.name)
    return made, method.initial_state(table.dim, checked, made.computing_dtype)


def _pairs(given: list[str]) -> dict[str, Any]:
    pairs = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InvalidArgumentError(f"convert: found {each!r}, expected name=value")
        pairs[name] = value
    return pairs
