"""For any argument of a client: an answer, or an error of sparring that names the problem."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.errors import InvalidArgumentError, SparringError
from sparring_serve import AsyncParameterClient, LookupClient, ParameterClient, TablePush, Token

from .conftest import MakeShards

ONES = np.ones((1, 4), np.float32)
WRONG: list[Any] = [
    *(
        None,
        True,
        -1,
        0,
        1.5,
        float("nan"),
        float("inf"),
        2**70,
        10**400,
        object(),
        print,
        iter([1]),
    ),
    *(
        "x",
        "",
        "\0",
        "\ud800",
        b"x",
        [],
        (),
        [1],
        [None],
        ["item"],
        ["\ud800"],
        [2**70],
        [[1], [2, 3]],
    ),
    *({}, {"item"}, {5: [1]}, {"item": 5}, {"item": [1]}, {"item": ["a", None]}, {"lr": object()}),
    *({"item": (object(), "x")}, {"item": ([2**70], ONES)}, {"item": ([1], [["a"] * 4])}),
    *(ONES, ONES[0], ONES + 1j, np.array(["a"]), range(3)),
]
CALLS: dict[str, dict[str, Any]] = {
    "pull": {"ids": {"item": [1, 2]}},
    "scan": {"table": "item"},
    "recommend": {"table": "item", "queries": ONES},
    "describe": {},
    "push": {"gradients": {"item": ([1], ONES)}},
    "flush": {},
    "save": {"url": "a"},
    "load": {"url": "a"},
}
PARTS: dict[str, Callable[[ParameterClient, Any], object]] = {
    "ids": lambda client, wrong: client.pull({"item": wrong}),
    "ids of a push": lambda client, wrong: client.push({"item": (wrong, ONES)}),
    "gradients": lambda client, wrong: client.push({"item": ([1], wrong)}),
    "method": lambda client, wrong: client.push({"item": TablePush([1], ONES, wrong)}),
    "hyper": lambda client, wrong: client.push({"item": TablePush([1], ONES, hyper=wrong)}),
    "client": lambda client, wrong: client.push({"item": ([1], ONES)}, token=Token(wrong, 1)),
    "number": lambda client, wrong: client.push({"item": ([1], ONES)}, token=Token("a", wrong)),
    "keys": lambda client, wrong: client.recommend("item", {"item": wrong}),
    "excluded": lambda client, wrong: client.recommend("item", ONES, exclude=[wrong]),
    "target": lambda _, wrong: ParameterClient(wrong),
    "targets": lambda _, wrong: LookupClient([wrong]),
    "config": lambda _, wrong: ParameterClient("a:1", wrong),
    "path": lambda _, wrong: ParameterClient.from_config(wrong),
    "overrides": lambda _, wrong: ParameterClient.from_config("none.yaml", wrong),
}


def of_sparring(call: Callable[[], Any]) -> str:
    """Returns the message of its error, which must be an error of sparring, or an empty text."""
    try:
        found = call()
        if hasattr(found, "__next__"):
            next(found, None)
    except SparringError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("method", CALLS)
def test_wrong_arguments_of_a_call_are_rejected(
    make_shards: MakeShards, tmp_path: Path, method: str
) -> None:
    shards = make_shards(1, folders=[str(tmp_path)])
    with shards.client() as client:
        call = getattr(client, method)
        for name in inspect.signature(call).parameters:
            messages = [
                of_sparring(lambda wrong=wrong, name=name: call(**CALLS[method] | {name: wrong}))
                for wrong in WRONG
            ]
            assert any(messages), f"{method}({name}=…) refuses nothing"


@pytest.mark.parametrize("part", PARTS)
def test_wrong_parts_of_arguments_are_rejected(make_shards: MakeShards, part: str) -> None:
    with make_shards(1).client() as client:
        messages = [of_sparring(lambda wrong=wrong: PARTS[part](client, wrong)) for wrong in WRONG]
    assert any(messages)


def test_wrong_arguments_are_also_rejected_for_asyncio() -> None:
    async def ask() -> None:
        async with AsyncParameterClient("127.0.0.1:1") as client:
            for call in (
                client.pull({"item": [1]}, deadline_seconds="x"),
                client.push(5),
                client.flush(deadline_seconds="x"),
                client.save("a", deadline_seconds="x"),
                client.load("a", tables="item"),
                client.describe(deadline_seconds="x"),
                client.recommend("item", ONES, k="x"),
            ):
                with pytest.raises(InvalidArgumentError, match=r"found '?(x|5|int|item)"):
                    await call

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda client: client.pull(5), "ids must be a mapping of tables to ids, found int"),
        (lambda client: client.pull({"item": [1]}, deadline_seconds="x"), "above 0 .*found 'x'"),
        (lambda client: client.pull({"item": [1]}, version=5), "version must be text, found 5"),
        (lambda client: client.push(None), r"tables to \(ids, gradients\), found NoneType"),
        (lambda client: client.recommend("item", ONES, k=0), "k must be .*at least 1, found 0"),
        (lambda client: client.load("a", tables="item"), r"found 'item'; use tables=\['item'\]"),
        (lambda client: client.load("a", tables=[]), "at least one table"),
        (lambda client: client.save(".."), "'..' is not a valid snapshot name"),
        (
            lambda _: ParameterClient("a:1", "b.yaml"),
            "config must be a ClientConfig, found str; .*from_config",
        ),
        (lambda _: ParameterClient(7), "targets must be 'host:port', .*found 7"),
    ],
)
def test_an_error_reports_the_value_that_was_found(
    make_shards: MakeShards, call: Callable[[ParameterClient], object], message: str
) -> None:
    with make_shards(1).client() as client, pytest.raises(InvalidArgumentError, match=message):
        call(client)
