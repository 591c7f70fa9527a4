"""Reads pages of metrics in Prometheus's text format, and compares two readings of a page."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from sparring.errors import (
    ConfigError,
    DataError,
    InvalidArgumentError,
    PluginError,
    StorageIOError,
)
from sparring_cli.metrics.exporter import MetricsAccess

__all__ = ["Credentials", "Interval", "Labels", "Scrape", "complete_url", "scrape"]

_TIMEOUT_SECONDS = 5.0
_MAX_BYTES = 32 << 20

Labels = tuple[tuple[str, str], ...]
"""Pairs of a label's name and value, sorted."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of a page.

    Args:
        url: URL of the page.
        time: Time of the reading, in seconds of a monotonic clock.
        values: Name of a sample → its labels → value.
    """

    url: str
    time: float
    values: Mapping[str, Mapping[Labels, float]]


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a page requires, and certificates to trust.

    Args:
        token: Token that is sent with each request; empty: none.
        tls: Certificates to trust; None: those of the system.
    """

    token: str = ""
    tls: ssl.SSLContext | None = None

    @classmethod
    def read(cls, token_file: Path | None, ca_file: Path | None) -> Credentials:
        """Reads the files of the options of ``sparring top``.

        Raises:
            ConfigError: A file cannot be read or is invalid.
        """
        token, tls = "", None
        if token_file is not None:
            access = MetricsAccess(token_file)
            access.check("--token-file")
            token = access.token().decode("latin-1")
        if ca_file is not None:
            try:
                tls = ssl.create_default_context(cafile=ca_file)
            except OSError as error:
                raise ConfigError(
                    f"--ca-file: {ca_file} contains no certificate that can be read ({error}); pass a "
                    "file in PEM format"
                ) from error
        return cls(token, tls)


def complete_url(text: str, *, is_encrypted: bool = False) -> str:
    """Returns the URL of a page: the scheme and ``/metrics`` may be omitted, as in ``host:9434``.

    Args:
        text: The URL or a part of it.
        is_encrypted: Whether the scheme must be ``https``, which is then also the default.

    Raises:
        InvalidArgumentError: The text is not the URL of a page.
    """
    url = text if "://" in text else f"{'https' if is_encrypted else 'http'}://{text}"
    if is_encrypted and url.startswith("http://"):
        raise InvalidArgumentError(
            f"top: found {url} and --ca-file, which needs TLS; use https://, or remove --ca-file"
        )
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidArgumentError(
            f"top: found the URL {text!r}, expected a page of metrics such as "
            "http://127.0.0.1:9434/metrics; fix it"
        )
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/metrics"


def scrape(url: str, credentials: Credentials | None = None) -> Scrape:
    """Reads a page.

    Args:
        url: URL of the page.
        credentials: Token and trusted certificates, if any.

    Raises:
        StorageIOError: The page cannot be read.
        DataError: It is not a page of metrics, or contains no metrics of sparring.
        PluginError: prometheus-client is not installed.
    """
    text = _read(url, credentials or Credentials())
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise PluginError(
            "top needs prometheus-client, which is not installed; run: pip install 'sparring[metrics]'"
        ) from None
    values: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                values.setdefault(sample.name, {})[labels] = float(sample.value)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(
            f"top: {url} is not a page of metrics in Prometheus's text format ({error}); pass the "
            "address of metrics.port or server.metrics_port",
            path=url,
        ) from error
    if not any(name.startswith("sparring_") for name in values):
        raise DataError(
            f"top: {url} contains no metrics of sparring; pass the address of metrics.port or "
            "server.metrics_port, and wait for the first step",
            path=url,
        )
    return Scrape(url, time.monotonic(), values)


def _read(url: str, credentials: Credentials) -> str:
    request = urllib.request.Request(url)
    if credentials.token:
        # Not sent to another server to which this one redirects.
        request.add_unredirected_header("Authorization", f"Bearer {credentials.token}")
    try:
        with urllib.request.urlopen(
            request, timeout=_TIMEOUT_SECONDS, context=credentials.tls
        ) as reply:
            content: bytes = reply.read(_MAX_BYTES + 1)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        fix = (
            "check that the job runs with metrics.port or server.metrics_port, and that this machine "
            "may connect to metrics.host"
        )
        if isinstance(error, urllib.error.HTTPError) and error.code == 401:
            fix = "pass the token of this page with --token-file"
        elif isinstance(reason, ssl.SSLCertVerificationError):
            fix = "pass the certificate of this page with --ca-file"
        elif isinstance(error, HTTPException):
            reason = "the reply is not HTTP"
            fix = "pass the address of metrics.port or server.metrics_port, not of another port"
        raise StorageIOError(f"top: reading {url} failed ({reason}); {fix}") from error
    if len(content) > _MAX_BYTES:
        raise DataError(
            f"top: {url} has more than {_MAX_BYTES:,} bytes, so it is not a page of metrics of sparring; "
            "fix the URL",
            path=url,
        )
    return content.decode("utf-8", "replace")


class Interval:
    """The change between two readings of a page.

    Counters that did not increase in all readings so far are shown since the start of the process. This
    is also the case if there is only one reading, or if the process was started again.

    Args:
        newest: The newest reading.
        older: An older reading of the same page, or None.
    """

    def __init__(self, newest: Scrape, older: Scrape | None) -> None:
        self._newest, self._older = newest, older
        self.seconds = 0.0 if older is None else newest.time - older.time
        """Time between the readings; 0 for counters since the start."""
        if older is not None and self._is_restarted(older):
            self._older, self.seconds = None, 0.0

    def _is_restarted(self, older: Scrape) -> bool:
        return any(
            value < older.values.get(name, {}).get(labels, 0.0)
            for name, each in self._newest.values.items()
            if name.endswith(("_total", "_bucket", "_count"))
            for labels, value in each.items()
        )

    def gauge(self, name: str, **labels: str) -> float | None:
        """Returns the sum of the newest values of all samples with these labels; None without any."""
        found = [value for _, value in self._select(name, labels)]
        return sum(found) if found else None

    def increase(self, name: str, **labels: str) -> float | None:
        """Returns the sum of the increases of counters; None without any."""
        found = [value - self._before(name, each) for each, value in self._select(name, labels)]
        return sum(found) if found else None

    def by_label(self, name: str, *wanted: str) -> dict[tuple[str, ...], float]:
        """Returns the increases of counters by the values of some labels."""
        found: dict[tuple[str, ...], float] = {}
        for labels, value in self._select(name, {}):
            known = dict(labels)
            place = tuple(known.get(each, "") for each in wanted)
            found[place] = found.get(place, 0.0) + value - self._before(name, labels)
        return found

    def quantiles(self, name: str, *shares: float) -> list[float] | None:
        """Returns quantiles of a histogram by linear interpolation in its buckets; None without values.

        A quantile in the last bucket, which has no upper bound, is its lower bound.
        """
        counts: dict[float, float] = {}
        for labels, value in self._select(f"{name}_bucket", {}):
            bound = float(dict(labels).get("le", "inf"))
            change = value - self._before(f"{name}_bucket", labels)
            counts[bound] = counts.get(bound, 0.0) + change
        bounds = sorted(counts)
        total = counts[bounds[-1]] if bounds else 0.0
        return [_quantile(bounds, counts, total * each) for each in shares] if total > 0 else None

    def _before(self, name: str, labels: Labels) -> float:
        return 0.0 if self._older is None else self._older.values.get(name, {}).get(labels, 0.0)

    def _select(self, name: str, labels: Mapping[str, str]) -> Iterator[tuple[Labels, float]]:
        for each, value in self._newest.values.get(name, {}).items():
            if labels.items() <= dict(each).items():
                yield each, value


def _quantile(bounds: list[float], counts: Mapping[float, float], wanted: float) -> float:
    low, below = 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= wanted and counts[bound] > below:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (wanted - below) / (counts[bound] - below)
        if bound != float("inf"):
            low = bound
        below = counts[bound]
    return low
