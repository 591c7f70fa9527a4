"""Creates certificates with the command ``openssl``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["make_certificate"]


def make_certificate(
    folder: Path,
    name: str,
    authority: Path | None = None,
    hosts: str = "IP:127.0.0.1",
    *extensions: str,
    days: int = 1,
) -> Path:
    """Creates a certificate, with its key next to it; skips the test without openssl.

    Args:
        folder: folder of the files ``NAME.pem`` and ``NAME.key``.
        name: the common name.
        authority: file of the certificate that signs; None creates a certificate that signs itself.
        hosts: subject alternative names, in the form of openssl; "" omits the extension.
        extensions: further extensions, in the form of openssl.
        days: days until it expires, at least 1.
    """
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    folder.mkdir(exist_ok=True)
    made = folder / f"{name}.pem"
    named = [f"subjectAltName={hosts}"] if hosts else []
    added = [word for each in (*named, *extensions) for word in ("-addext", each)]
    if authority is not None:
        added += ["-CA", str(authority), "-CAkey", str(authority.with_suffix(".key"))]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", str(days), "-subj", f"/CN={name}", *added,
         "-keyout", str(made.with_suffix(".key")), "-out", str(made)],
        check=True, capture_output=True,
    )  # fmt: skip
    return made
