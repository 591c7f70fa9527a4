"""`AuditLine`: logs who changed the tables of a server, in the log `sparring_serve.audit`."""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any

from sparring_serve.wire.fields import MessageError, decode
from sparring_serve.wire.messages import PartRequest, SnapshotReply, SnapshotRequest

__all__ = ["AUDITED", "AuditLine"]

_log = logging.getLogger("sparring_serve.audit")

AUDITED = ("Refresh", "Save", "Load", "SavePart", "LoadPart")
"""Methods of the role `admin`."""

_REQUEST_ID = "x-request-id"
_MAX_REQUEST_ID = 64


class AuditLine:
    """One log line per call, even if the call is rejected.

    The request id is the value of ``x-request-id`` in the metadata of the call, or a new one; the
    trailing metadata of the reply contain it.

    Args:
        method: Name of the method.
        context: gRPC context of the call.
    """

    def __init__(self, method: str, context: Any) -> None:
        self._method, self._begin = method, time.monotonic()
        self._peer = context.peer()
        identities = [each.decode(errors="replace") for each in context.peer_identities() or ()]
        self._caller = f"{self._peer}{''.join(f', certificate of {each!r}' for each in identities)}"
        given = str(dict(context.invocation_metadata()).get(_REQUEST_ID, ""))
        # gRPC does not send other characters.
        is_valid = given.isascii() and given.isprintable()
        self._request_id = (is_valid and given[:_MAX_REQUEST_ID]) or secrets.token_hex(8)
        context.set_trailing_metadata(((_REQUEST_ID, self._request_id),))
        self._what = ""
        self._is_wanted = True

    def note_caller(self, token: str) -> None:
        """Adds the token of the caller."""
        self._caller += f", {token}"

    def note_request(self, content: bytes) -> None:
        """Adds the snapshot that the call specifies."""
        try:
            if self._method in ("Save", "Load"):
                self._what = decode(SnapshotRequest, content).url
            elif self._method in ("SavePart", "LoadPart"):
                part: PartRequest = decode(PartRequest, content)
                self._what, self._is_wanted = part.url, not part.asks
        except MessageError:
            self._what = "a damaged request"

    def write(self, outcome: str, answer: bytes = b"") -> None:
        """Writes the line, except for calls that only check whether a shard can save or load.

        Args:
            outcome: ``done``, ``failed``, or the status of a rejected call.
            answer: Reply, which contains the name of a save without a name.
        """
        if not self._is_wanted:
            return
        what = self._what
        if self._method == "Save" and answer:
            what = decode(SnapshotReply, answer).url
        _log.info(
            "%s%s by %s: %s after %.3f s, request id %r",
            self._method, f" {what!r}" if what else "", self._caller, outcome,
            time.monotonic() - self._begin, self._request_id,
        )  # fmt: skip
