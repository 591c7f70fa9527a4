"""Libraries of the system that wheels contain: components of an SBOM, and known vulnerabilities."""

from __future__ import annotations

import json
import subprocess
import urllib.request
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

OSV = "https://api.osv.dev/v1/querybatch"
TIMEOUT_SECONDS = 60
FORMAT = "${Version}\t${source:Package}\t${source:Version}"

Component = dict[str, Any]


def read_components(wheels: Iterable[Path]) -> list[Component]:
    """Returns the libraries in the SBOMs that auditwheel wrote into wheels, without duplicates."""
    found: dict[str, Component] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if ".dist-info/sboms/" not in name or not name.endswith(".json"):
                    continue
                for each in json.loads(archive.read(name))["components"]:
                    if each["purl"].startswith("pkg:deb/"):
                        found[each["purl"]] = {**each, "bom-ref": each["purl"]}
    return [found[purl] for purl in sorted(found)]


def add_components(sbom: Path, components: Sequence[Component]) -> None:
    """Adds components to a file of CycloneDX."""
    document = json.loads(sbom.read_text())
    document.setdefault("components", []).extend(components)
    sbom.write_text(json.dumps(document, indent=2) + "\n")


def find_sources(components: Sequence[Component]) -> list[tuple[str, str]]:
    """Returns the names and versions of the source packages, under which vulnerabilities are listed.

    Raises:
        RuntimeError: a package of the wheels is not installed here in the same version.
    """
    found: dict[tuple[str, str], None] = {}
    for each in components:
        command = ["dpkg-query", "-W", "-f", FORMAT, each["name"]]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        version, _, source = asked.stdout.partition("\t")
        if asked.returncode or version != unquote(each["version"]):
            raise RuntimeError(
                f"the wheels contain {each['name']} {each['version']}, found {version or 'none'} on this "
                "machine; search vulnerabilities on the machine that built the wheels"
            )
        name, _, number = source.partition("\t")
        found[name, number] = None
    return list(found)


def search_vulnerabilities(
    sources: Sequence[tuple[str, str]], system: Mapping[str, str], url: str = OSV
) -> list[str]:
    """Returns a line per known vulnerability of source packages, from the database OSV.

    Args:
        sources: names and versions.
        system: content of /etc/os-release.
        url: address of the database.

    Raises:
        OSError: the database did not answer.
    """
    release = system["VERSION_ID"]
    ecosystem = f"Debian:{release}" if system["ID"] == "debian" else f"Ubuntu:{release}:LTS"
    queries = [
        {"package": {"name": name, "ecosystem": ecosystem}, "version": version}
        for name, version in sources
    ]
    asked = urllib.request.Request(url, json.dumps({"queries": queries}).encode(), method="POST")
    asked.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(asked, timeout=TIMEOUT_SECONDS) as reply:
        results = json.load(reply)["results"]
    return [
        f"{name} {version}: {known['id']}"
        for (name, version), result in zip(sources, results, strict=True)
        for known in result.get("vulns", ())
    ]
