"""Answers requests for the files of a model: its parameters and its preprocessing."""

from __future__ import annotations

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_serve.service import LookupService, decode_request, version_message
from sparring_serve.status import Status, StatusError
from sparring_serve.tables.contract import VersionGoneError
from sparring_serve.wire.fields import Buffer, encode
from sparring_serve.wire.messages import ReadModelReply, ReadModelRequest

__all__ = ["read_model"]


def read_model(service: LookupService, content: Buffer, remaining_seconds: float) -> bytes:
    """Answers a ReadModelRequest with a ReadModelReply.

    Args:
        service: Service with the tables of the model.
        content: The encoded request.
        remaining_seconds: Time until the caller's deadline.

    Raises:
        StatusError: With one of the status codes listed in `lookup.proto`.
    """
    service.check_deadline(remaining_seconds)
    request: ReadModelRequest = decode_request(ReadModelRequest, content)
    service.check_tables([])
    most = service.limits.max_bytes
    num_bytes = request.max_bytes if 0 < request.max_bytes <= most else most
    with service.admission.of(num_bytes if request.kind else 0):
        try:
            part = service.tables.read_model(
                request.kind, request.begin, num_bytes, request.version
            )
        except VersionGoneError as error:
            raise StatusError(Status.NOT_FOUND, str(error), reason="version_gone") from None
        except InvalidArgumentError as error:
            raise StatusError(Status.INVALID_ARGUMENT, str(error), reason="message") from None
        except UnsupportedError as error:
            raise StatusError(Status.INVALID_ARGUMENT, str(error), reason="model") from None
        return encode(
            ReadModelReply(tuple(part.files), part.content, version_message(part.version))
        )
