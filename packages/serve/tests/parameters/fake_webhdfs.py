"""A server on loopback that supports the part of WebHDFS that fsspec uses."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_PREFIX = "/webhdfs/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]
    folders: set[str]
    lock: threading.Lock

    def log_message(self, *_: Any) -> None:
        """Writes no log."""

    def _handle(self) -> None:
        split = urlsplit(self.path)
        path = unquote(split.path).removeprefix(_PREFIX).rstrip("/") or "/"
        asked = {name: values[0] for name, values in parse_qs(split.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        content = self.rfile.read(length)
        with self.lock:
            getattr(self, f"_{asked['op'].lower()}")(path, asked, content)

    do_GET = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - names of http.server

    def _answer(self, value: Any, status: int = 200, **headers: str) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)

    def _missing(self, path: str) -> None:
        error = {"exception": "FileNotFoundException", "message": f"File does not exist: {path}"}
        self._answer({"RemoteException": error}, 404)

    def _redirect(self) -> None:
        """Redirects to a data node, which is this server."""
        host, port = self.server.server_address[:2]
        location = f"http://{host!s}:{port}{self.path}&isDataNode=true"
        self._answer({}, 307, Location=location)

    def _status(self, path: str) -> dict[str, Any] | None:
        shown = {"pathSuffix": path.rpartition("/")[2], "modificationTime": int(time.time() * 1000)}
        if path in self.files:
            return {**shown, "type": "FILE", "length": len(self.files[path])}
        is_folder = path in self.folders or path == "/"
        return {**shown, "type": "DIRECTORY", "length": 0} if is_folder else None

    def _getfilestatus(self, path: str, *_: Any) -> None:
        found = self._status(path)
        if found is None:
            return self._missing(path)
        return self._answer({"FileStatus": {**found, "pathSuffix": ""}})

    def _liststatus(self, path: str, *_: Any) -> None:
        if self._status(path) is None:
            return self._missing(path)
        inside = [each for each in [*self.files, *self.folders] if each.rpartition("/")[0] == path]
        return self._answer(
            {"FileStatuses": {"FileStatus": [self._status(each) for each in inside]}}
        )

    def _mkdirs(self, path: str, *_: Any) -> None:
        parts = path.strip("/").split("/")
        self.folders |= {"/" + "/".join(parts[:end]) for end in range(1, len(parts) + 1)}
        self._answer({"boolean": True})

    def _create(self, path: str, asked: dict[str, str], content: bytes) -> None:
        if "isDataNode" not in asked:
            return self._redirect()
        self.files[path] = content
        return self._answer(b"", 201)

    def _append(self, path: str, asked: dict[str, str], content: bytes) -> None:
        if "isDataNode" not in asked:
            return self._redirect()
        self.files[path] += content
        return self._answer(b"")

    def _open(self, path: str, asked: dict[str, str], _: bytes) -> None:
        if path not in self.files:
            return self._missing(path)
        if "isDataNode" not in asked:
            return self._redirect()
        begin = int(asked.get("offset", 0))
        return self._answer(self.files[path][begin : begin + int(asked.get("length", 1 << 40))])

    def _delete(self, path: str, asked: dict[str, str], _: bytes) -> None:
        if self._status(path) is None:
            return self._missing(path)
        self.files.pop(path, None)
        self.folders.discard(path)
        if asked.get("recursive") == "true":
            for each in [each for each in self.files if each.startswith(f"{path}/")]:
                del self.files[each]
        return self._answer({"boolean": True})


@contextmanager
def fake_webhdfs() -> Iterator[str]:
    """Yields the URL of the server in fsspec's form."""
    state = {"files": {}, "folders": set(), "lock": threading.Lock()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), state))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"webhdfs://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
