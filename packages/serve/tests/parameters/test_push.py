"""Pushes: the bits of the engine, applied once, rejected before any row changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.errors import DeadlineError, InvalidArgumentError, UnknownTableError
from sparring_serve import (
    AccessError,
    AsyncParameterClient,
    ClientConfig,
    LookupClient,
    ParameterClient,
    PushFailedError,
    ServingConfig,
    ShardRestartedError,
    TablePush,
    Token,
    open_parameter_server,
)
from sparring_serve.client.transport import Send
from sparring_serve.status import Status, StatusError
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import PushRequest, TableGradients, Wait

from .conftest import IDS, TABLES, MakeShards, OneProcess, assert_same_rows, made_gradients


@pytest.mark.parametrize("num_shards", [1, 3])
def test_pushes_give_the_bits_of_the_engine_in_one_process(
    make_shards: MakeShards, one_process: OneProcess, num_shards: int
) -> None:
    shards = make_shards(num_shards)
    assert_same_rows(shards, one_process.rows(IDS))
    with shards.client() as client:
        for seed in range(5):
            gradients = made_gradients(seed)
            if seed == 2:
                del gradients["user"]
            done = client.push(gradients, wait="applied")
            assert done.step == (seed + 1,) * num_shards
            one_process.push(gradients)
    assert_same_rows(shards, one_process.rows(IDS))


def test_queued_pushes_are_applied_before_a_flush_returns(
    make_shards: MakeShards, one_process: OneProcess
) -> None:
    shards = make_shards(2)
    with shards.client() as client:
        for seed in range(5):
            client.push(made_gradients(seed))
            one_process.push(made_gradients(seed))
        assert client.flush() == (5, 5)
    assert_same_rows(shards, one_process.rows(IDS))


def test_a_push_whose_answer_is_lost_is_applied_once(
    make_shards: MakeShards, one_process: OneProcess
) -> None:
    random = np.random.default_rng(7)
    lost = []

    def fault(send: Send) -> str:
        if send.method != "Push" or random.random() < 0.5:
            return ""
        lost.append(send.address)
        return str(random.choice(["lost", "cut", "damaged", "busy", "hang"]))

    shards = make_shards(2)
    with shards.client(fault) as client:
        for seed in range(30):
            client.push(made_gradients(seed), wait="applied", deadline_seconds=600)
            one_process.push(made_gradients(seed))
    assert len(lost) > 30
    assert_same_rows(shards, one_process.rows(IDS))


def test_a_failed_push_is_repeated_by_its_token(
    make_shards: MakeShards, one_process: OneProcess
) -> None:
    shards = make_shards(2)
    down = {"shard:1"}
    with shards.client(lambda send: "cut" if send.address in down else "") as client:
        down.clear()
        client.describe()
        down.add("shard:1")
        with pytest.raises(
            PushFailedError,
            match=r"shard 2 at shard:1: .*connection refused; shards 1 succeeded",
        ) as info:
            client.push(made_gradients(1), wait="applied", deadline_seconds=3)
        assert info.value.done == (0,)
        down.clear()
        again = client.push(made_gradients(1), wait="applied", token=info.value.token)
        assert again.was_known == (0,)
    one_process.push(made_gradients(1))
    assert_same_rows(shards, one_process.rows(IDS))


@pytest.mark.parametrize("changed", [{"update_method": "sgd"}, {"dim": 8}])
def test_pushes_to_shards_with_different_declarations_are_rejected(
    make_shards: MakeShards, changed: dict[str, Any]
) -> None:
    shards = make_shards(2)
    tables = {**TABLES, "item": TABLES["item"] | changed}
    other = make_shards(2, tables=tables).services
    shards.services["shard:1"], other["shard:1"] = other["shard:1"], shards.services["shard:1"]
    with shards.client() as client:
        gradients = made_gradients(0)
        with pytest.raises(InvalidArgumentError, match=r"'item' differently: .*in shards \[2\]"):
            client.push(gradients)
        client.push({"user": gradients["user"]}, wait="applied")


def test_a_full_queue_rejects_pushes_and_drops_nothing(
    make_shards: MakeShards, one_process: OneProcess
) -> None:
    shards = make_shards(1, queue_pushes=2)
    [service] = shards.services.values()
    with shards.client() as client, shards.client() as other:
        client.describe()
        with service.shard._turn:  # nothing is applied meanwhile
            for seed in range(2):
                client.push(made_gradients(seed))
            with pytest.raises(PushFailedError, match=r"RESOURCE_EXHAUSTED .*2 pushes of") as info:
                client.push(made_gradients(2), deadline_seconds=2)
        client.flush()
        client.push(made_gradients(2), token=info.value.token, wait="applied")
        assert client.push(made_gradients(2), token=info.value.token).was_known == (0,)
        other.flush()
    for seed in range(3):
        one_process.push(made_gradients(seed))
    assert_same_rows(shards, one_process.rows(IDS))


def test_lr_belongs_to_a_push_and_other_hyper_parameters_to_the_table(
    make_shards: MakeShards,
) -> None:
    slow, fast = make_shards(1), make_shards(1)
    gradients = {"item": ([1, 2], np.ones((2, 4), np.float32))}
    for shards, lr in ((slow, 0.01), (fast, 0.1)):
        with shards.client() as client:
            client.push(gradients, hyper={"lr": np.float64(lr), "eps": 1e-10}, wait="applied")
    before = make_shards(1).rows(np.array([1]))["item"]
    moved = [each.rows(np.array([1]))["item"] - before for each in (slow, fast)]
    assert np.allclose(10 * moved[0], moved[1], rtol=1e-4)


ONES = np.ones((2, 8), np.float32)


@pytest.mark.parametrize(
    ("pushed", "error", "message"),
    [
        ({"usr": ([1, 2], ONES)}, UnknownTableError, "'usr' is not served; did you mean 'user'"),
        (
            {"user": ([1, 2], ONES[:, :4])},
            InvalidArgumentError,
            r"\(2, 8\), because .*found .*\(2, 4\)",
        ),
        ({"user": ([1.5, 2], ONES)}, InvalidArgumentError, "integers"),
        ({"user": ([1, 2], ONES * np.nan)}, InvalidArgumentError, "NaN or infinity"),
        ({"user": TablePush([1, 2], ONES, "sgd")}, InvalidArgumentError, "'sgd'.* uses 'adam'"),
        (
            {"user": TablePush([1, 2], ONES, hyper={"beta1": 0.5})},
            InvalidArgumentError,
            "beta1=0.5, but the table uses beta1=0.9",
        ),
        (
            {"user": TablePush([1, 2], ONES, hyper={"bta1": 0.5})},
            InvalidArgumentError,
            "no hyper-parameter 'bta1'",
        ),
        (
            {"user": TablePush([1, 2], ONES, hyper={"lr": object()})},
            InvalidArgumentError,
            "must be a mapping of names to values",
        ),
        ({"user": None}, InvalidArgumentError, "a tuple of ids and gradients, found NoneType"),
        ({"user": ([1, 2], ONES, ONES)}, InvalidArgumentError, "found 3 values"),
        ({}, InvalidArgumentError, "no table"),
    ],
)
def test_invalid_pushes_are_rejected_before_any_row_changes(
    make_shards: MakeShards, pushed: dict[str, Any], error: type[Exception], message: str
) -> None:
    shards = make_shards(2)
    before = shards.rows(IDS)
    good = {"item": ([1, 2], np.ones((2, 4), np.float32))} if pushed else {}
    with shards.client() as client, pytest.raises(error, match=message):
        client.push({**good, **pushed}, wait="applied")
    assert_same_rows(shards, before)
    assert all(each.shard.steps == 0 for each in shards.services.values())


def test_a_token_belongs_to_one_push(make_shards: MakeShards) -> None:
    with make_shards(1).client() as client:
        wrong: Any = "3e9f:7"
        with pytest.raises(InvalidArgumentError, match="must be a Token of an earlier push"):
            client.push({"user": ([1, 2], ONES)}, token=wrong)


def test_keys_with_non_finite_gradients_are_left_out_on_request(
    make_shards: MakeShards,
) -> None:
    shards = make_shards(1, non_finite_gradients="skip")
    gradients = np.ones((2, 8), np.float32)
    gradients[1, 3] = np.inf
    before = shards.rows(np.array([1, 2]))["user"]
    with shards.client() as client:
        client.push({"user": ([1, 2], gradients)}, wait="applied")
    after = shards.rows(np.array([1, 2]))["user"]
    assert (after[0] != before[0]).all()
    assert np.array_equal(after[1], before[1])


def test_an_old_token_is_rejected_and_not_applied(make_shards: MakeShards) -> None:
    shards = make_shards(1)
    gradients = {"item": ([1], np.ones((1, 4), np.float32))}
    with shards.client() as client:
        client.push(gradients, token=Token("a", 2000), wait="applied")
        client.push(gradients, token=Token("a", 1500), wait="applied")
        rows = shards.rows(np.array([1]))["item"]
        with pytest.raises(PushFailedError, match="older than its last 1024"):
            client.push(gradients, token=Token("a", 900), wait="applied")
        assert client.push(gradients, token=Token("a", 1500), wait="applied").was_known == (0,)
    assert np.array_equal(shards.rows(np.array([1]))["item"], rows)


def test_pushes_work_over_a_network_with_asyncio_and_a_read_only_server(
    one_process: OneProcess,
) -> None:
    config = ServingConfig.model_validate({"parameters": {"tables": TABLES, "start": None}})
    with open_parameter_server(config, address="127.0.0.1:0") as server:

        async def train() -> np.ndarray:
            async with AsyncParameterClient(server.address) as client:
                await client.push(made_gradients(0), wait="applied")
                await client.push(made_gradients(1))
                await client.flush()
                return (await client.pull({"user": IDS}, deadline_seconds=5)).rows["user"]

        rows = asyncio.run(train())
        with LookupClient(server.address) as client:
            assert np.array_equal(client.pull({"user": IDS}, deadline_seconds=5).rows["user"], rows)
    for seed in range(2):
        one_process.push(made_gradients(seed))
    assert np.array_equal(rows, one_process.rows(IDS)["user"])
    assert ParameterClient(["a:1"]).name != ParameterClient(["a:1"]).name


@pytest.mark.parametrize("wait", [Wait.QUEUED, Wait.APPLIED])
def test_a_server_checks_what_its_client_did_not(make_shards: MakeShards, wait: Wait) -> None:
    [service] = make_shards(1).services.values()
    ids = np.array([1, 2]).tobytes()
    for gradients, said in (
        (np.full((2, 8), np.inf, np.float32), "NaN or infinity"),
        (
            np.ones((2, 4), np.float32),
            "must be float32 with the dim 8 of the table, found 4",
        ),
    ):
        tables = (TableGradients("user", ids, gradients.tobytes()),)
        with pytest.raises(StatusError, match=said):
            service.push(encode(PushRequest(tables, "a", 1, wait)), 5)
    assert service.shard.steps == 0
    assert service.push(encode(PushRequest((), "a", 1, Wait.APPLIED)), 5)


def test_roles_of_tokens_determine_who_may_pull_push_and_save(tmp_path: Path) -> None:
    tokens = {role: f"{role}-".ljust(20, "x") for role in ("pull", "push", "admin")}
    (tmp_path / "tokens").write_text("".join(f"{role} {text}\n" for role, text in tokens.items()))
    config = ServingConfig.model_validate(
        {
            "parameters": {"tables": TABLES, "start": None, "folders": [str(tmp_path / "saved")]},
            "server": {"token_file": tmp_path / "tokens"},
        }
    )
    refused = []
    with open_parameter_server(config, address="127.0.0.1:0") as server:
        for role, text in tokens.items():
            (tmp_path / role).write_text(text)
            given = ClientConfig(token_file=tmp_path / role, deadline_seconds=9)
            with ParameterClient(server.address, given) as client:
                client.pull({"user": IDS})
                calls = {"push": lambda: client.push(made_gradients(0)), "save": client.save}
                for name, call in calls.items():
                    try:
                        call()
                    except AccessError:
                        refused.append((role, name))
    assert refused == [("pull", "push"), ("pull", "save"), ("push", "save")]


def test_tables_that_learn_are_read_by_a_snapshot_and_not_scanned(make_shards: MakeShards) -> None:
    with (
        make_shards(2).client() as client,
        pytest.raises(InvalidArgumentError, match=r"save \(ParameterClient\.save\) and read"),
    ):
        next(client.scan("user"))


def test_tables_that_learn_give_no_recommendations(make_shards: MakeShards) -> None:
    with (
        make_shards(2).client() as client,
        pytest.raises(InvalidArgumentError, match="or publish and serve it"),
    ):
        client.recommend("item", np.ones((1, 4)))


@pytest.mark.parametrize(
    "hyper", ["[" * 3000, "[" * 2000 + "]" * 2000, '{"lr": ' * 400 + "1" + "}" * 400, "{" * 65]
)
def test_nested_hyper_parameters_are_an_invalid_argument(
    make_shards: MakeShards, hyper: str
) -> None:
    shards = make_shards(1)
    content = encode(PushRequest((TableGradients("user", bytes(8), bytes(32), "", hyper),), "a", 1))
    with pytest.raises(
        StatusError, match=r"with at most 64 brackets, found '.*send one such as"
    ) as caught:
        shards.services["shard:0"].push(content, 5.0)
    assert caught.value.status is Status.INVALID_ARGUMENT
    assert shards.services["shard:0"].shard.steps == 0


def test_a_shard_that_hung_and_restarted_is_reported_although_its_circuit_is_open(
    make_shards: MakeShards,
) -> None:
    shards = make_shards(2)
    faults = {"shard:1": ""}
    with shards.client(lambda send: faults.get(send.address, "")) as client:
        client.push(made_gradients(0), wait="applied")
        faults["shard:1"] = "hang"
        for _ in range(2):  # the second pull finds the circuit open
            with pytest.raises(DeadlineError, match="shard 2: no replica replied"):
                client.pull({"item": IDS})
        shards.start(1)
        faults["shard:1"] = ""
        with pytest.raises(
            ShardRestartedError, match="shard 2 at shard:1 restarted without pushes 1"
        ):
            client.push(made_gradients(1))
        client.push(made_gradients(2), wait="applied")
