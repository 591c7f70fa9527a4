"""The server of the page, on loopback only.

    GET /TOKEN/                 the page
    GET /TOKEN/look.css, .js    its files
    GET /TOKEN/api/REQUEST      lines of JSON: {"progress": share} …, then {"result": …} or {"error": …}

Another web page in the same browser must not read the tables. It cannot guess the random token. A page
whose host name was changed to resolve to this machine (DNS rebinding) sends its own name in the header
Host, which is rejected. No request changes anything, and only GET is accepted.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from sparring.errors import NotFoundError, SparringError, StorageIOError
from sparring_train.view.answers import LookView
from sparring_train.view.page import WEB_FILES, render_live_page

__all__ = ["LookServer"]

_HOST = "127.0.0.1"
_CONNECTION_SECONDS = 30.0
"""How long the server waits for a request, and for a client that does not read its reply."""
_PROGRESS_SECONDS = 0.2
_MAX_PARAMETERS = 8
_MAX_COMPUTATIONS = 2
"""Computations over all rows at a time; others wait."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_HTML = "text/html; charset=utf-8"


class LookServer:
    """Serves the page about one view, with a thread per request.

    Args:
        view: What the page shows.
        port: Port to listen on; 0 selects a free port.

    Raises:
        StorageIOError: The server cannot listen on the port.
    """

    def __init__(self, view: LookView, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        try:
            self._server = _Server((_HOST, port), _Handler)
        except OSError as error:
            raise StorageIOError(
                f"look: cannot listen on {_HOST}:{port} ({error.strerror or error}); choose another "
                "--port, or 0 for a free one"
            ) from error
        self._server.view, self._server.token = view, self.token
        self.port = int(self._server.server_port)
        self.address = f"http://{_HOST}:{self.port}/{self.token}/"
        """URL of the page."""

    def serve_forever(self) -> None:
        """Answers requests until `close` is called or an exception such as KeyboardInterrupt ends it."""
        self._server.serve_forever()

    def close(self) -> None:
        """Stops `serve_forever` in another thread, and releases the port."""
        self._server.shutdown()
        self._server.server_close()

    def release_port(self) -> None:
        """Releases the port after `serve_forever` has ended."""
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Newer versions of Python would let a second server listen on the same port.
    allow_reuse_port = False
    view: LookView
    token: str

    def __init__(self, *arguments: Any) -> None:
        self.computations = threading.BoundedSemaphore(_MAX_COMPUTATIONS)
        super().__init__(*arguments)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores connections that a client closed; prints the traceback of other errors."""
        import sys

        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "sparring", ""
    timeout = _CONNECTION_SECONDS

    def do_GET(self) -> None:
        server = cast(_Server, self.server)
        hosts = {f"{name}:{server.server_port}" for name in (_HOST, "localhost")}
        if self.headers.get_all("Host") is None or {*self.headers.get_all("Host", [])} - hosts:
            self._reply(403, "text/plain", b"the header Host does not name this server\n")
            return
        try:
            target = urlsplit(self.path)
        except ValueError:
            self._reply(400, "text/plain", b"the address is not valid\n")
            return
        empty, token, name = [*target.path.split("/", 2), "", ""][:3]
        is_allowed = secrets.compare_digest(
            token.encode("latin-1", "replace"), server.token.encode()
        )
        if empty or not is_allowed:
            self._reply(
                403, "text/plain", b"open the complete address that `sparring look` printed\n"
            )
            return
        if name == "":
            self._reply(200, _HTML, render_live_page())
        elif name in WEB_FILES:
            kind, content = WEB_FILES[name]
            self._reply(200, kind, content())
        elif name.removeprefix("api/") in server.view.requests and name.startswith("api/"):
            self._answer(name.removeprefix("api/"), target.query)
        else:
            self._reply(404, "text/plain", b"not found\n")

    def _answer(self, request: str, query: str) -> None:
        server = cast(_Server, self.server)
        reply = _Lines(self)
        try:
            given = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
        except ValueError:
            reply.end(400, {"error": f"found more than {_MAX_PARAMETERS} parameters"})
            return
        if len({name for name, _ in given}) != len(given):
            reply.end(400, {"error": "found a parameter twice; give each once"})
            return
        try:
            reads_all = request in server.view.long_requests
            with server.computations if reads_all else nullcontext():
                result = server.view.answer(request, dict(given), reply.report)
        except SparringError as error:
            reply.end(404 if isinstance(error, NotFoundError) else 400, {"error": str(error)})
        except ConnectionError:
            return  # The user left, or requested something else.
        except Exception as error:
            reply.end(500, {"error": f"{type(error).__name__}: {error}"})
            raise
        else:
            reply.end(200, {"result": result})

    def _reply(self, status: int, kind: str, content: bytes) -> None:
        self.start(status, kind, {"Content-Length": str(len(content))})
        self.wfile.write(content)

    def start(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        """Sends the status and the headers of a reply."""
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - name of the base class
        """Logs nothing."""


class _Lines:
    """A reply of lines of JSON. The status is sent with the first line."""

    def __init__(self, handler: _Handler) -> None:
        self._handler = handler
        self._is_started = False
        self._reported = time.monotonic()

    def report(self, share: float) -> None:
        """Sends the progress, at most five times per second.

        Raises:
            ConnectionError: The client has closed the connection, so the computation should stop.
        """
        now = time.monotonic()
        if now - self._reported < _PROGRESS_SECONDS:
            return
        self._reported = now
        self._send(200, {"progress": share})

    def end(self, status: int, value: Mapping[str, Any]) -> None:
        """Sends the last line. The status has an effect only if no progress was sent."""
        self._send(status, value)

    def _send(self, status: int, value: Mapping[str, Any]) -> None:
        if not self._is_started:
            # Without a length, the end of the connection ends the reply.
            self._handler.start(status, "application/x-ndjson", {"Connection": "close"})
            self._is_started = True
        self._handler.wfile.write(json.dumps(value, allow_nan=False).encode() + b"\n")
        self._handler.wfile.flush()
