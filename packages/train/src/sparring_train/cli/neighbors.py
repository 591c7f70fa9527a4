"""``sparring neighbors``: the keys whose embeddings are nearest to the embedding of one key."""

from __future__ import annotations

from typing import Annotated, Any, cast

import numpy as np
import typer
from rich.table import Table

from sparring.errors import UnsupportedError
from sparring_cli import JsonOption, add_command, get_command_context, make_console, print_json
from sparring_train.cli.evaluate import SnapshotArgument
from sparring_train.cli.get import open_newest_snapshot
from sparring_train.recommend.item_index import IndexOption, chooses_faiss
from sparring_train.recommend.names_of_ids import names_of_ids
from sparring_train.run.same_run import RUN
from sparring_train.run.saved_run import read_run_config
from sparring_train.run.snapshot_rows import embeddings, find_embedding, find_key

__all__ = ["Best", "add_neighbors", "print_best"]

Best = Annotated[int, typer.Option("-k", help="Number of results.", min=1, max=65_536)]


def add_neighbors(application: typer.Typer) -> None:
    add_command(
        application,
        "neighbors",
        neighbors,
        group="Use a trained model",
        examples=[
            "sparring neighbors runs/films item 7",
            "sparring neighbors runs/films item shoe -k 5 --metric dot --json",
        ],
        accepts_negative_numbers=True,
    )


def neighbors(
    context: typer.Context,
    snapshot: SnapshotArgument,
    table: Annotated[str, typer.Argument(help="The table's name.")],
    key: Annotated[
        str, typer.Argument(help="A key of the table: a number, or a string as in the data.")
    ],
    k: Best = 10,
    metric: Annotated[
        str, typer.Option(help="cosine, dot or l2 (the squared distance times -1).")
    ] = "cosine",
    index: IndexOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Print the keys of a table whose embeddings are nearest to the embedding of one key."""
    try:
        from sparring_packed import FaissIndex, top_k
    except ImportError:
        raise UnsupportedError(
            "neighbors needs sparring-packed; run: pip install 'sparring-train[ranking]'"
        ) from None
    found = open_newest_snapshot(snapshot)
    asked = find_key(found, table, key)
    query = find_embedding(found, table, asked)
    assert query is not None
    uses_faiss, itself = chooses_faiss(index), (np.array([asked]), np.array([0, 1]))
    rows, measure = embeddings(found, table), cast(Any, metric)  # The index validates the metric.
    if uses_faiss:
        best = FaissIndex(rows, metric=measure).top_k(query[None], k, exclude=itself)
    else:
        best = top_k(rows, query[None], k, metric=measure, exclude=itself)
    count = int(best.counts[0])
    keys, scores = best.keys[0][:count], best.scores[0][:count].tolist()
    manager = get_command_context(context).plugin_manager
    names: list[int | str] = keys.tolist()
    if RUN in found.state_names(0):
        names = names_of_ids(found, read_run_config(found, (), manager), table, keys)
    if as_json:
        listed = [{"key": name, "score": score} for name, score in zip(names, scores, strict=True)]
        used = "faiss" if uses_faiss else "exact"
        told = {"snapshot": found.url, "table": table, "of": key, "index": used}
        print_json({**told, "neighbors": listed})
    else:
        print_best(table, names, metric, scores)


def print_best(what: str, names: list[int | str], measure: str, scores: list[float]) -> None:
    """Prints a table of results, best first."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column(what)
    shown.add_column(measure, justify="right")
    for name, score in zip(names, scores, strict=True):
        shown.add_row(str(name), f"{score:.4f}")
    make_console().print(shown, markup=False)
