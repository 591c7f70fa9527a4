"""Effects of the keys of the port of metrics."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from sparring.errors import ConfigError
from sparring_train.loop import run_metrics
from sparring_train.metrics_files.prometheus import PrometheusPage

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

from .config_runs import Runs, shows


@shows("metrics.port")
def test_effect_of_metrics_port(runs: Runs) -> None:
    host, page = last_page(runs, "metrics.port=0")
    assert host == "127.0.0.1"
    assert '\nsparring_steps_total{rank="0"} 4.0\n' in page
    for each in ('steps_seconds_total{kind="dense",rank="0"}', 'training_loss{rank="0"}'):
        [value] = re.findall(rf"^sparring_{re.escape(each)} (\S+)$", page, re.MULTILINE)
        assert 0 < float(value) < 60


@shows("metrics.host")
def test_effect_of_metrics_host(runs: Runs) -> None:
    assert last_page(runs, "metrics.port=0", "metrics.host=127.0.0.2")[0] == "127.0.0.2"


@shows("metrics.token_file")
def test_effect_of_metrics_token_file(runs: Runs) -> None:
    Path("token").write_text("the token of Prometheus\n")
    given = ("metrics.port=0", "metrics.token_file=token")
    assert last_page(runs, *given)[1] == "status 401"
    # Other words, because a run with the same words is not repeated.
    again = (*given, "metrics.every_seconds=9")
    page = last_page(runs, *again, token="the token of Prometheus")[1]
    assert "\nsparring_steps_total" in page
    warnings: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_metrics._log, "warning", lambda text, *_: warnings.append(text))
        page = last_page(runs, *given, "metrics.host=0.0.0.0", token="the token of Prometheus")[1]
    assert "\nsparring_steps_total" in page
    assert ["sent in plain text" in each for each in warnings] == [True]
    Path("token").write_text("\n")
    with pytest.raises(ConfigError, match="the first line must be the token"):
        runs.ratings(*given, "metrics.every_seconds=8")
    with pytest.raises(ConfigError, match=r"token_file.*no effect without a port"):
        runs.ratings("metrics.token_file=token")


@shows("metrics.certificate_file", "metrics.key_file")
def test_effects_of_metrics_certificate_file_and_key_file(runs: Runs) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "1", "-subj", "/CN=run", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", "key.pem", "-out", "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    given = ("metrics.port=0", "metrics.certificate_file=cert.pem")
    page = last_page(runs, *given, "metrics.key_file=key.pem", ca="cert.pem")[1]
    assert "\nsparring_steps_total" in page
    with pytest.raises(ConfigError, match=r"certificate_file.*found metrics\.key_file: null"):
        runs.ratings(*given)
    with pytest.raises(
        ConfigError, match=r"cert\.pem|key\.pem|its token or certificate is invalid"
    ):
        runs.ratings(*given, "metrics.key_file=cert.pem")


def last_page(
    runs: Runs, *overrides: str, token: str = "", ca: str | None = None
) -> tuple[str, str]:
    """Returns the address of a run's metrics, and the page after the run; or the status of an error."""
    pytest.importorskip("prometheus_client", reason="metrics.port needs it")
    shown: list[tuple[str, str]] = []
    close = PrometheusPage.close

    def read_and_close(page: PrometheusPage) -> None:
        host, port = page._exporter._server.server_address[:2]
        tls = ssl.create_default_context(cafile=ca)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
        )
        url = f"{'https' if ca else 'http'}://{host}:{port}/metrics"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        try:
            with opener.open(request, timeout=60) as answer:
                shown.append((host, answer.read().decode()))
        except urllib.error.HTTPError as error:
            shown.append((host, f"status {error.code}"))
        close(page)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrometheusPage, "close", read_and_close)
        runs.ratings(*overrides)
    [found] = shown
    return found
