"""``sparring look``: opens a local page about the tables of a snapshot."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from sparring.errors import InvalidArgumentError
from sparring_cli import (
    JsonOption,
    add_command,
    get_command_context,
    print_document,
    print_json,
    print_note,
)

__all__ = ["add_look"]


def add_look(application: typer.Typer) -> None:
    add_command(
        application,
        "look",
        look,
        examples=[
            "sparring look runs/films",
            "sparring look runs/films/step-000000000200 --with runs/films/step-000000000100",
            "sparring look served/films --output films.html",
            "sparring look runs/films --colors films.csv --color-by genre",
        ],
    )


def look(  # noqa: PLR0913, PLR0917 - typer makes the options of these
    context: typer.Context,
    snapshot: Annotated[
        str,
        typer.Argument(
            metavar="SNAPSHOT",
            help="A snapshot or a serving snapshot, or a folder of them, whose newest one is used.",
            show_default=False,
        ),
    ],
    other: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="SNAPSHOT",
            help="An older version to compare with. On the page, any version in the same folder can be "
            "chosen.",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT", help="Port to listen on; 0 selects a free one.", min=0, max=65_535
        ),
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address; do not open a browser.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write a page of the samples that needs no server, and exit. With --with, all tables "
            "are compared.",
        ),
    ] = None,
    colors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A Parquet or CSV file whose first column contains ids; colors the map by --color-by.",
        ),
    ] = None,
    color_by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of --colors: numbers or groups.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the tables of a snapshot on a local page: sizes, norms, maps, rows, neighbors, differences.

    The page is served to this machine only, until Ctrl-C. Its address contains a random token.
    """
    # Imported here, because every command imports this module.
    from sparring_train.view.answers import LookView, open_source
    from sparring_train.view.colors import read_colors
    from sparring_train.view.page import render_static_page
    from sparring_train.view.server import LookServer

    manager = get_command_context(context).plugin_manager
    if output is not None and port:
        raise InvalidArgumentError(
            f"look: found --port {port} with --output, but a written page needs no server; remove one of "
            "them"
        )
    if (colors is None) != (color_by is None):
        raise InvalidArgumentError("look: --colors and --color-by need each other; give both")
    column = read_colors(colors, color_by) if colors is not None and color_by is not None else None
    source = open_source(snapshot, manager)
    view = LookView(source, None if other is None else open_source(other, manager), column)
    told = {"kind": source.kind, "url": source.url, "step": source.step}
    try:
        if output is not None:
            print_document(render_static_page(view, compares=other is not None), output)
            if as_json:
                print_json({"output": str(output), **told})
            else:
                print_note(f"wrote {output}")
            return
        server = LookServer(view, port)
        try:
            if as_json:
                print_json({"address": server.address, **told})
            else:
                typer.echo(server.address)
                print_note(f"shows {source.url} to this machine until Ctrl-C")
            if not no_browser:
                webbrowser.open(server.address)
            with suppress(KeyboardInterrupt):  # This is how the user leaves.
                server.serve_forever()
        finally:
            server.release_port()
    finally:
        view.close()
