"""Choice of the search for similar items: exact, or an index of Faiss."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Literal

import typer

from sparring.errors import UnsupportedError

__all__ = ["Index", "IndexOption", "UsedIndex", "chooses_faiss"]

UsedIndex = Literal["exact", "faiss"]
Index = Literal["auto", "exact", "faiss"]

IndexOption = Annotated[
    Index,
    typer.Option(
        help="Search method: faiss, an index of Faiss in memory; exact, a comparison with all rows; "
        "auto, faiss if it is installed, and exact with --output."
    ),
]


def chooses_faiss(index: Index) -> bool:
    """Returns whether to use an index of Faiss.

    Raises:
        UnsupportedError: it is requested, but is not installed.
    """
    if index == "exact":
        return False
    is_installed = all(find_spec(name) is not None for name in ("faiss", "sparring_packed"))
    if index == "faiss" and not is_installed:
        raise UnsupportedError(
            "--index faiss requires Faiss and sparring-packed; run: pip install faiss-cpu "
            "'sparring-train[ranking]', or choose --index exact"
        )
    return is_installed
