"""Creates a certificate authority and a server certificate with the openssl command."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Certificates", "make_certificates"]


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files of an authority and of a certificate that it signed."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def context(self) -> ssl.SSLContext:
        """Returns a client context that trusts the authority for any host and has the certificate."""
        context = ssl.create_default_context(cafile=self.authority)
        context.check_hostname = False
        context.load_cert_chain(self.certificate, self.key)
        return context

    @property
    def server_settings(self) -> dict[str, Any]:
        """Returns the settings of ``redis.conf`` for these files."""
        return {
            "tls-ca-cert-file": self.authority,
            "tls-cert-file": self.certificate,
            "tls-key-file": self.key,
            "tls-auth-clients": "no",
        }


def make_certificates(folder: Path, host: str = "127.0.0.1") -> Certificates:
    """Creates an authority and a certificate for the IP address `host`, valid for one day."""
    authority, authority_key = folder / "ca.pem", folder / "ca.key"
    key, request, certificate = folder / "key.pem", folder / "request.pem", folder / "cert.pem"
    extensions = folder / "extensions"
    extensions.write_text(f"subjectAltName=IP:{host}\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for command in (
        ["req", "-x509", *new_key, "-keyout", authority_key, "-out", authority, "-days", "1",
         "-subj", "/CN=sparring tests"],
        ["req", *new_key, "-keyout", key, "-out", request, "-subj", f"/CN={host}"],
        ["x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key,
         "-CAcreateserial", "-out", certificate, "-days", "1", "-extfile", extensions],
    ):  # fmt: skip
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    return Certificates(authority, certificate, key)
