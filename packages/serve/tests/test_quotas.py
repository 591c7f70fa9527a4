"""Quotas of clients, on both servers: calls and ids per second."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from sparring_serve import (
    ClientConfig,
    LookupClient,
    ParameterClient,
    ReplicasFailedError,
    ServerConfig,
    ServingConfig,
    ServingMetrics,
    open_parameter_server,
)
from sparring_serve.limits import Quotas
from sparring_serve.status import StatusError
from sparring_serve.testing.front_ends import FrontEnd, call, pull, read_metrics
from sparring_serve.wire.messages import SERVICE
from sparring_serve.wire.open_inference import HEALTH, INFERENCE, InferRequest, InferTensor

from .conftest import Serve

OLD, NEW, OTHER, ADMIN = "o" * 16, "n" * 16, "x" * 16, "a" * 16
TOKENS = f"pull {OLD} client=ads\npull {NEW} client=ads\n# others\npush {OTHER}\nadmin {ADMIN}\n"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    (tmp_path / "tokens").write_text(TOKENS)
    return tmp_path / "tokens"


def ask(
    server: FrontEnd, token: str, method: str = f"{SERVICE}/Describe", request: Any = b""
) -> Any:
    status, message, _, _ = call(
        server.address, method, request, metadata=(("authorization", f"Bearer {token}"),)
    )
    return status, message


def test_calls_beyond_the_quota_of_a_client_are_rejected(serve: Serve, token_file: Path) -> None:
    server = serve(token_file=token_file, quota={"calls_per_second": 0.01})
    assert ask(server, OLD)[0] == "OK"
    # Both tokens belong to one client.
    for token in (OLD, NEW):
        status, message = ask(server, token)
        assert status == "RESOURCE_EXHAUSTED"
        assert re.fullmatch(
            r"client ads has used its quota of 0\.01 calls per second; retry after \d\d(\.\d)? s, send "
            r"fewer calls, or increase server\.quota\.calls_per_second of this server",
            message,
        )
    assert ask(server, OTHER)[0] == "OK"
    assert [ask(server, ADMIN)[0] for _ in range(3)] == ["OK"] * 3
    assert call(server.address, f"{HEALTH}/Check")[0] == "OK"
    metrics = read_metrics(server)
    assert {name: value for name, value in metrics.items() if name.startswith("client_")} == {
        'client_calls_total{client="ads",result="admitted"}': 1,
        'client_calls_total{client="ads",result="rejected"}': 2,
        'client_calls_total{client="line-4",result="admitted"}': 1,
        **{name: 0 for name in metrics if name.endswith('"line-4",result="rejected"}')},
        **{name: 0 for name in metrics if name.startswith("client_ids_total")},
    }
    assert metrics['rejected_total{reason="quota"}'] == 2
    with (
        LookupClient(
            server.address, ClientConfig(token_file=token_with(token_file, OLD))
        ) as client,
        pytest.raises(ReplicasFailedError, match=r"has used its quota .*limit the rate of this"),
    ):
        client.pull({"item": [7]}, deadline_seconds=1)


def token_with(tokens: Path, token: str) -> Path:
    path = tokens.parent / "token"
    path.write_text(token)
    return path


def test_a_call_with_many_ids_delays_the_next_ones(serve: Serve, token_file: Path) -> None:
    server = serve(token_file=token_file, quota={"ids_per_second": 0.5})
    ids = np.arange(50)
    assert ask(server, OLD, f"{SERVICE}/Pull", pull(("item", ids)))[0] == "OK"
    infer = InferRequest(
        "item", inputs=(InferTensor("ids", "INT64", (50,)),), raw_input_contents=(ids.tobytes(),)
    )
    assert ask(server, OTHER, f"{INFERENCE}/ModelInfer", infer)[0] == "OK"
    for token, client in ((OLD, "ads"), (OTHER, "line-4")):
        status, message = ask(server, token)
        assert status == "RESOURCE_EXHAUSTED"
        start = f"client {client} has used its quota of 0.5 ids per second; retry after "
        assert message.startswith(start)
        assert 10 < float(message.removeprefix(start).split()[0]) <= 99
        assert read_metrics(server)[f'client_ids_total{{client="{client}"}}'] == 50


def test_pushed_ids_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token_file: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    config = ServingConfig.model_validate(
        {
            "parameters": {"tables": {"item": {"dim": 2}}},
            "server": {"token_file": token_file, "quota": {"ids_per_second": 1000}},
        }
    )
    with (
        open_parameter_server(config, address="127.0.0.1:0") as server,
        ParameterClient(
            server.address, ClientConfig(token_file=token_with(token_file, OTHER))
        ) as client,
    ):
        client.push({"item": ([1, 2, 3], np.ones((3, 2)))}, wait="applied", deadline_seconds=60)
        assert server.metrics.value("client_ids_total", client="line-4") == 3


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    return Clock()


def test_the_mean_rate_is_the_quota(clock: Clock) -> None:
    metrics = ServingMetrics()
    quotas = Quotas(4.0, 100.0, metrics, clock)

    def admitted(seconds: float, step: float, num_ids: int) -> int:
        end, count = clock.now + seconds, 0
        while clock.now < end:
            try:
                quotas.admit("ads")
            except StatusError:
                pass
            else:
                count += 1
                with quotas.call("ads"):
                    quotas.charge(num_ids)
            clock.now += step
        return count

    # Calls of one second may be made at once after a pause.
    assert admitted(60, 0.01, 1) == pytest.approx(4 * 61, abs=2)
    clock.now += 60
    assert admitted(60, 0.01, 1000) == pytest.approx(60 * 100 / 1000, abs=2)
    quotas.charge(7)  # outside of a call
    rejected = metrics.value("client_calls_total", client="ads", result="rejected")
    all_calls = rejected + metrics.value("client_calls_total", result="admitted")
    assert all_calls == pytest.approx(12_000, abs=5)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"quota": {"calls_per_second": 1}}, "quota needs token_file"),
        ({"quota": {"ids_per_second": 0}}, "greater than 0"),
        ({"metrics_tls": True}, "no effect without metrics_port"),
        ({"metrics_token_file": "a"}, "no effect without metrics_port"),
        ({"metrics_port": 1, "metrics_tls": True}, "metrics_tls needs a certificate"),
    ],
)
def test_contradictory_keys_are_rejected(server: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ServerConfig.model_validate(server)
