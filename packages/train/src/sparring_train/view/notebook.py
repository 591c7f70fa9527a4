"""`look`: the page of `sparring look` in a notebook."""

from __future__ import annotations

import os
from html import escape

from sparring import make_plugin_manager
from sparring_train.view.answers import LookView, open_source
from sparring_train.view.page import render_static_page

__all__ = ["LookPage", "look"]

_HEIGHT_PIXELS = 800


class LookPage:
    """A page about a snapshot, which a notebook shows as the value of a cell.

    Args:
        html: The complete page.
        title: What it shows.
    """

    def __init__(self, html: str, title: str) -> None:
        self.html = html
        """The complete page, which needs no server and no other file."""
        self._title = title

    def __repr__(self) -> str:
        return f"<LookPage of {self._title}>"

    def _repr_html_(self) -> str:
        # The page has its own origin, so it cannot read the notebook.
        return (
            f'<iframe title="{escape(self._title)}" sandbox="allow-scripts" srcdoc="{escape(self.html)}" '
            f'style="width: 100%; height: {_HEIGHT_PIXELS}px; border: 0"></iframe>'
        )


def look(url: str | os.PathLike[str], compare: str | os.PathLike[str] | None = None) -> LookPage:
    """Returns a page about the tables of a snapshot for a notebook: sizes, norms, and maps of samples.

    `sparring look` shows the same page with searches, neighbors and the history of rows.

    Args:
        url: A snapshot or a serving snapshot, or a folder of them, whose newest one is used.
        compare: An older version. All rows of both versions are read and compared.

    Raises:
        SnapshotError: There is no snapshot, or it is damaged.
        InvalidArgumentError: The versions cannot be compared.

    Examples:
        >>> import tempfile
        >>> from sparring import StepContainer, TableConfig
        >>> from sparring_train import look
        >>> with tempfile.TemporaryDirectory() as folder, StepContainer() as container:
        ...     container.declare(TableConfig("user", dim=2))
        ...     container.assign("user", [1, 2, 3], [[0, 1], [2, 3], [4, 5]])
        ...     saved = container.save(f"{folder}/step-000000000")
        ...     page = look(folder)
        >>> page.html[:15]
        '<!doctype html>'
    """
    manager = make_plugin_manager()
    source = open_source(os.fspath(url), manager)
    other = None if compare is None else open_source(os.fspath(compare), manager)
    view = LookView(source, other)
    try:
        html = render_static_page(view, compares=other is not None)
    finally:
        view.close()
    return LookPage(html, f"{source.kind} {source.url}")
