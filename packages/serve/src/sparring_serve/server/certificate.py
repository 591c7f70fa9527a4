"""Time at which the certificate of a server expires."""

from __future__ import annotations

import base64
import binascii
import logging
import re
import time
from collections.abc import Iterator
from datetime import datetime, timezone

from sparring.errors import ConfigError

__all__ = ["read_expiry"]

_WARNING_SECONDS = 14 * 86400.0
"""Remaining time of a certificate below which a warning is logged."""

_PEM = re.compile(rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----(.+?)-----END", re.DOTALL)
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0

_log = logging.getLogger(__name__)


def read_expiry(content: bytes) -> float:
    """Returns the time in seconds since 1970 at which the first certificate of a PEM file expires. Logs a
    warning if it has expired or expires soon.

    Args:
        content: The file.

    Raises:
        ConfigError: The file contains no certificate.
    """
    found = _PEM.search(content)
    try:
        expiry = None if found is None else _end_of_validity(base64.b64decode(found[1]))
    except (ValueError, IndexError, StopIteration, binascii.Error):
        expiry = None
    if expiry is None:
        raise ConfigError(
            "server.tls.certificate_file: found no certificate, expected one in PEM format; set the path "
            "of the certificate, with its chain"
        )
    rest = expiry - time.time()
    if rest < _WARNING_SECONDS:
        _log.warning(
            "the certificate of server.tls.certificate_file %s at %s; replace the file, which is read "
            "again while the server runs",
            "expired" if rest < 0 else "expires",
            datetime.fromtimestamp(expiry, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        )
    return expiry


def _end_of_validity(der: bytes) -> float | None:
    """Returns the field `notAfter` of a certificate (RFC 5280, 4.1): the second time in the sequence that
    follows the optional version, the serial number, the algorithm and the issuer."""
    _, certificate = next(_fields(der))
    _, signed = next(_fields(certificate))
    parts = [each for each in _fields(signed) if each[0] != _VERSION]
    kind, validity = parts[3]
    times = list(_fields(validity))
    if kind != _SEQUENCE or len(times) != 2:
        return None
    form, text = times[1]
    if form not in (_UTC_TIME, _GENERALIZED_TIME):
        return None
    # Two digits mean 1950 to 2049; strptime would divide the centuries at 1969.
    digits = text.decode("ascii")
    if form == _UTC_TIME:
        digits = ("19" if digits >= "5" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()


def _fields(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the tag and the content of the fields of a sequence."""
    at = 0
    while at < len(der):
        tag, size = der[at], der[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(der[at : at + count], "big")
            at += count
        if at + size > len(der):
            raise ValueError("the certificate is incomplete")
        yield tag, der[at : at + size]
        at += size
