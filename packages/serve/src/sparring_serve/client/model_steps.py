"""Reads the files of a model from a lookup service."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import xxhash

from sparring_packed import decode_parameters
from sparring_serve.client.answer import ReplyVersion
from sparring_serve.client.arguments import check_text
from sparring_serve.client.failures import ReplicasFailedError
from sparring_serve.client.rounds import Rounds
from sparring_serve.client.session import MAX_ATTEMPTS, Session, Steps
from sparring_serve.tables.contract import VersionGoneError
from sparring_serve.wire.fields import MessageError, decode, encode
from sparring_serve.wire.messages import ModelFileMessage, ReadModelReply, ReadModelRequest

__all__ = ["ModelFiles", "compared_steps", "model_steps", "read_file"]

_log = logging.getLogger(__name__)

_MAX_REMEMBERED = 16
_PART_BYTES = 1 << 20
"""Maximum size of a part, so that a call occupies a server only for a short time."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Parameters and preprocessing of a model in one version.

    Args:
        version: The version.
        parameters: Ordinary parameters by the names of the framework; empty if the version contains
            only rows.
        preprocessing: How raw columns become inputs, as ``docs/format/packed.md`` describes; empty if
            the version contains only rows.
    """

    version: ReplyVersion
    parameters: Mapping[str, npt.NDArray[Any]]
    preprocessing: Mapping[str, Any]


def model_steps(
    session: Session, version: str, deadline_seconds: float | None
) -> Steps[ModelFiles]:
    """Reads all files of the model in one version; see `LookupClient.model`."""
    check_text("version", version)
    deadline = session.deadline(deadline_seconds)
    for beginning in range(MAX_ATTEMPTS):
        description = yield from session.description_steps(deadline)
        wanted = version
        if not version and session.shards.num_shards > 1:
            wanted = session.common_version(description)
        try:
            return (yield from _files(session, wanted, deadline))
        except VersionGoneError:
            # Servers switched to a newer version in the meantime.
            session.forget()
            if version or beginning == MAX_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _files(session: Session, version: str, deadline: float) -> Steps[ModelFiles]:
    listed = yield from _part(session, ReadModelRequest(version=version), deadline)
    found = listed.version
    contents: dict[str, bytes] = {}
    for each in listed.files:
        contents[each.kind] = yield from read_file(session, each, found.hash, deadline)
    parameters: Mapping[str, npt.NDArray[Any]] = {}
    if "parameters" in contents:
        parameters, _ = decode_parameters(contents["parameters"])
    return ModelFiles(
        ReplyVersion(found.run, found.step, found.hash),
        parameters,
        json.loads(contents.get("preprocessing", b"{}")),
    )


def compared_steps(
    session: Session, version: str, deadline: float
) -> Steps[tuple[str, ...] | None]:
    """Reads the tables whose rows the model of a version compares as vectors. It remembers the answers
    for a few versions. If an earlier release published the model, a warning says so.

    Returns:
        Names of the tables; None if the version contains no model, or an earlier release published it.
    """
    if version not in session.compared:
        listed = yield from _part(session, ReadModelRequest(version=version), deadline)
        found: dict[str, Any] = {}
        for each in listed.files:
            if each.kind == "preprocessing":
                found = json.loads((yield from read_file(session, each, version, deadline)))
        tables = found.get("vectors")
        if found and tables is None:
            of = listed.version
            _log.warning(
                "version %s, step %s, of %s does not describe which rows its model compares, because an "
                "earlier release published it: if rows are inputs of the model, recommendations by keys "
                "do not rank; publish a newer snapshot of the run, or this one again to another folder",
                of.hash, f"{of.step:,}", of.run,
            )  # fmt: skip
        if len(session.compared) >= _MAX_REMEMBERED:
            session.compared = {}
        session.compared[version] = None if tables is None else tuple(map(str, tables))
    return session.compared[version]


def read_file(
    session: Session, file: ModelFileMessage, version: str, deadline: float
) -> Steps[bytes]:
    """Reads one file of the model.

    Args:
        session: State of the client.
        file: Kind, size and hash of the file.
        version: Hash of its version.
        deadline: Deadline on the clock of the session.

    Raises:
        ReplicasFailedError: The bytes do not have the hash of the file.
    """
    content = bytearray()
    while len(content) < file.size_bytes:
        request = ReadModelRequest(file.kind, version, len(content), _PART_BYTES)
        part = yield from _part(session, request, deadline)
        content += part.content
    if xxhash.xxh3_128_hexdigest(content) != file.hash:
        raise ReplicasFailedError(
            f"the file {file.kind} of version {version} was received with another hash than "
            f"{file.hash}; retry, and verify the serving snapshot: sparring inspect --verify"
        )
    return bytes(content)


def _part(session: Session, request: ReadModelRequest, deadline: float) -> Steps[ReadModelReply]:
    replies: list[ReadModelReply] = []

    def accept(_: int, content: bytes) -> None:
        reply: ReadModelReply = decode(ReadModelReply, content)
        if request.kind and not len(reply.content):
            raise MessageError("the reply contains no bytes before the end of the file")
        replies.append(reply)

    # Each shard has all files of the model.
    rounds = Rounds("ReadModel", [(0, encode(request))], accept)
    yield from session.run(rounds, deadline)
    if not replies:
        raise rounds.failures()[0][1]
    return replies[0]
