"""The page as HTML: with its files on a server, or complete in one file that shows samples only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html import escape
from importlib import resources
from typing import Any

from sparring_train.view.answers import LookView, as_json_value

__all__ = ["WEB_FILES", "render_live_page", "render_static_page"]

_STATIC_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<link rel="icon" href="data:,">\n'
)


def _read(name: str) -> bytes:
    return resources.files("sparring_train.view").joinpath("web").joinpath(name).read_bytes()


WEB_FILES: Mapping[str, tuple[str, Callable[[], bytes]]] = {
    "look.css": ("text/css; charset=utf-8", lambda: _read("look.css")),
    "look.js": ("text/javascript; charset=utf-8", lambda: _read("look.js")),
}
"""Files of the live page: name → type and a function that reads it."""


def render_live_page() -> bytes:
    """Returns the page, which loads `WEB_FILES` and requests its data from the server."""
    return (
        f"{_HEAD}<title>sparring look</title>\n"
        '<link rel="stylesheet" href="look.css">\n<script src="look.js" defer></script>\n'
        f"</head>\n{_read('body.html').decode()}</html>\n"
    ).encode()


def render_static_page(view: LookView, *, compares: bool = False) -> str:
    """Returns a complete page that needs no server. It shows the manifests and samples of all tables.

    Args:
        view: What the page shows.
        compares: Whether to compare all tables with the other version, which reads all their rows.

    Raises:
        SparringError: A file is damaged, or the versions cannot be compared.
    """
    overview = view.overview()
    names = [each["name"] for each in overview["tables"]]
    data: dict[str, Any] = {"overview": overview, "samples": {}, "names": {}, "differences": {}}
    for name in names:
        data["samples"][name] = view.sample(name)
        data["names"][name] = view.names(name)
        if compares and view.other is not None:
            data["differences"][name] = view.difference(name, view.other, 20, lambda _: None)
    # No text of the data can end the element or start a comment.
    text = json.dumps(as_json_value(data), allow_nan=False).replace("<", "\\u003c")
    return (
        f'{_HEAD}<meta http-equiv="Content-Security-Policy" content="{escape(_STATIC_POLICY)}">\n'
        f"<title>sparring look</title>\n<style>\n{_read('look.css').decode()}</style>\n</head>\n"
        f"{_read('body.html').decode()}"
        f'<script type="application/json" id="data">{text}</script>\n'
        f"<script>\n{_read('look.js').decode()}</script>\n</html>\n"
    )
