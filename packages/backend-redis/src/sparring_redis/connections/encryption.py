"""Creates the TLS context of all connections from options."""

from __future__ import annotations

import ssl
from pathlib import Path

from sparring.errors import InvalidArgumentError
from sparring_redis.options import RedisServerOptions

__all__ = ["create_tls_context"]


def create_tls_context(options: RedisServerOptions) -> ssl.SSLContext:
    """Creates the TLS context. The files are read once, here.

    Raises:
        InvalidArgumentError: a file cannot be read or has the wrong content.
    """
    for name in ("tls_ca_file", "tls_certificate_file", "tls_key_file"):
        path: Path | None = getattr(options, name)
        if path is not None:
            _check_readable(name, path)
    try:
        context = ssl.create_default_context(cafile=options.tls_ca_file)
    except ssl.SSLError as error:
        raise _wrong("tls_ca_file", options.tls_ca_file, error) from None
    context.check_hostname = options.tls_check_hostname
    if options.tls_certificate_file is not None:
        try:
            # The empty password keeps OpenSSL from prompting on the terminal.
            context.load_cert_chain(options.tls_certificate_file, options.tls_key_file, "")
        except ssl.SSLError as error:
            if options.tls_key_file is None:
                raise InvalidArgumentError(
                    f"redis: tls_certificate_file {options.tls_certificate_file} does not contain a "
                    f"PEM certificate and its key ({error.reason or error}); set tls_key_file to the "
                    "file of the key"
                ) from None
            raise InvalidArgumentError(
                f"redis: tls_certificate_file {options.tls_certificate_file} and tls_key_file "
                f"{options.tls_key_file} must be a PEM certificate and its key without a password, "
                f"found {error.reason or error}; set files that belong together"
            ) from None
    return context


def _check_readable(name: str, path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidArgumentError(
            f"redis: cannot read {name} {path} ({reason}); set {name} to a PEM file"
        ) from None


def _wrong(name: str, path: Path | None, error: ssl.SSLError) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"redis: {name} {path} does not contain a PEM certificate ({error.reason or error}); set it "
        "to a file of trusted certificates"
    )
