"""Tables of a run are sharded by the file of a plan, or by a plan that is computed for it."""

from __future__ import annotations

from typing import Any

import pytest

from sparring import make_plugin_manager
from sparring.errors import ConfigError
from sparring_train.config.reading.loader import parse_config

pytest.importorskip("sparring_torch", reason="needs sparring-torch")
pytest.importorskip("sparring_plan", reason="needs sparring-plan")

from .config_runs import RATINGS, Runs

HEAD = """\
version: 1
inputs: "0"
calibration: default
solver: numpy
ranks: 2
step_ms: 1.0
bound_ms: 1.0
gap: 0.0
price_per_hour: 0.0
price_per_billion_samples: 0.0
tables:
"""
TABLE = """\
  {name}:
    kind: {kind}
    ranks: {ranks}
    columns: 1
    transfer: rows
    storage: hkv
    rows: 100
    table_bytes: 7140
    bytes: 7769
    ms: 0.1
"""


def plan(user: tuple[str, Any], item: tuple[str, Any]) -> str:
    """A plan; `item` begins at line 12, and `user` at line 22."""
    return HEAD + "".join(
        TABLE.format(name=name, kind=kind, ranks=ranks)
        for name, (kind, ranks) in (("item", item), ("user", user))
    )


def divided(ranks: list[int], columns: int) -> str:
    """A plan whose users have blocks of columns."""
    head, _, tail = plan(("column_wise", ranks), ("row_wise", "all")).rpartition("columns: 1")
    return f"{head}columns: {columns}{tail}"


def write(runs: Runs, name: str, text: str) -> str:
    (runs.folder / name).write_text(text)
    return name


def rows(runs: Runs, name: str, *overrides: str) -> list[tuple[int, int]]:
    """Returns the rows of users and of items of each rank."""
    runs.ranks(f"metrics.path={name}-{{rank}}", *overrides)
    tables = [runs.lines(f"{name}-{rank}")[-1]["tables"] for rank in (0, 1)]
    return [(each["user"]["rows"], each["item"]["rows"]) for each in tables]


def test_tables_are_placed_by_the_file(runs: Runs) -> None:
    users, items = runs.ratings().rows.values()
    path = write(runs, "wise.yaml", plan(("table_wise", [1]), ("data_parallel", "all")))
    assert rows(runs, "wise", f"plan={path}") == [(0, items), (users, items)]
    first, second = runs.ranks("metrics.path=wise-{rank}", f"plan={path}")
    assert first.messages[0] == "plan wise.yaml: 2 tables: 1 data_parallel, 1 table_wise"
    assert not second.messages
    # The numbers do not depend on where rows are.
    assert first.losses == pytest.approx(runs.ratings().losses, rel=1e-5)


def test_columns_are_placed_by_the_file(runs: Runs) -> None:
    users, items = runs.ratings().rows.values()
    path = write(runs, "columns.yaml", divided([1, 0], 2))
    first, _ = runs.ranks("metrics.path=columns-{rank}", f"plan={path}")
    assert first.rows == {"user": users, "item": items}
    # Each rank has its columns of all users.
    blocks = ("user.columns-0-2", "user.columns-2-4")
    tables = [runs.lines(f"columns-{rank}")[-1]["tables"] for rank in (0, 1)]
    assert [[each[name]["rows"] for name in blocks] for each in tables] == [[0, users], [users, 0]]
    assert first.losses == pytest.approx(runs.ratings().losses, rel=1e-5)


def test_auto_computes_a_plan_and_reports_it(runs: Runs) -> None:
    first, second = runs.ranks("plan=auto", "tables.memory_bytes=1 GiB")
    assert not second.messages
    assumptions, table = first.messages
    assert assumptions.startswith("plan auto: tables user, item: the size is unknown")
    assert table.startswith(
        "plan auto: 2 tables on 2 ranks, 1 per node; batches of 8 samples per rank"
    )
    assert first.losses == pytest.approx(runs.ratings().losses, rel=1e-5)
    # One rank needs no plan.
    assert not runs.ratings("plan=auto").messages


def test_auto_without_a_planner_is_row_wise_and_reports_it(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runs.manager._registered.pop(("planners", "auto"))
    try:
        first, _ = runs.ranks("plan=auto", "seed=9")
        with pytest.raises(ConfigError, match=r'plan: planner .*pip install "sparring\[plan\]"'):
            runs.config(RATINGS, "plan=wise.yaml")
    finally:
        runs.manager._registered["planners", "auto"] = made
    (message,) = first.messages
    assert message.startswith(
        "plan auto: tables whose kind is not specified are row_wise, because planner"
    )


def test_a_plan_for_other_ranks_is_rejected_before_a_row_moves(runs: Runs) -> None:
    path = write(runs, "two.yaml", plan(("table_wise", [1]), ("row_wise", "all")))
    with pytest.raises(
        ConfigError, match=r"^two.yaml:5:1: the plan is for 2 ranks, .* has 1; start"
    ):
        runs.ratings(f"plan={path}")


GOOD = ("row_wise", "all")


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (
            plan(("tabel_wise", [1]), GOOD),
            "23:5",
            "tabel_wise; choose one of column_wise",
        ),
        (plan(("table_wise", [0, 1]), GOOD), "24:5", "on one rank; found ranks [0, 1]"),
        (divided([0, 1, 0], 3), "24:5", "has dim 4, which is not divisible by 3 blocks"),
        (divided([0, 1], 3), "25:5", "found 2 ranks, expected a multiple of 3 blocks"),
        (
            plan(GOOD, ("table_wise", [2])),
            "14:5",
            "planned for rank 2; this job has ranks 0 to 1",
        ),
        (plan(GOOD, ("table_wise", [-1])), "14:5", "distinct ranks of at least 0"),
        (plan(GOOD, ("row_wise", [1])), "14:5", "row_wise, which uses all 2 ranks"),
        (
            plan(GOOD, GOOD).replace("  user:", "  usr:"),
            "22:3",
            "there is no table 'usr'; did you mean 'user'?",
        ),
        (
            HEAD + TABLE.format(name="user", kind="row_wise", ranks="all"),
            "11:1",
            "does not contain 1 of 2",
        ),
        (HEAD.replace("gap", "gp"), "8:1", "unknown key 'gp'"),
        (plan(GOOD, GOOD).replace("columns: 1", "columns: 0"), "15:14", "a number above 0"),
        ("tables: [", "1:10", "YAML"),
    ],
)
def test_a_file_that_does_not_match_is_rejected_with_its_line(
    runs: Runs, text: str, place: str, words: str
) -> None:
    write(runs, "bad.yaml", text)
    with pytest.raises(ConfigError) as refused:
        parse_config(
            RATINGS + "plan: bad.yaml\n", source="run.yaml", plugin_manager=make_plugin_manager()
        )
    line = RATINGS.count("\n") + 1
    message = str(refused.value)
    assert message.startswith(f"run.yaml:{line}:7: plan: bad.yaml:")
    assert f"bad.yaml:{place}: " in message
    assert words in message


def test_a_declared_placement_must_agree(runs: Runs) -> None:
    path = write(runs, "placed.yaml", plan(GOOD, ("data_parallel", "all")))
    runs.config(RATINGS, f"plan={path}", "tables.overrides={item: {placement: replicated}}")
    with pytest.raises(
        ConfigError, match=r"placed.yaml:23:5: table user: .*placement 'replicated'"
    ):
        runs.config(RATINGS, f"plan={path}", "tables.placement=replicated")


def test_a_missing_file_is_rejected(runs: Runs) -> None:
    with pytest.raises(ConfigError, match=r"plan: none.yaml: cannot read the file"):
        runs.config(RATINGS, "plan=none.yaml")


@pytest.mark.parametrize("chosen", ["plan=auto", "plan=before.yaml"])
def test_a_run_continues_with_other_ranks_and_another_plan(runs: Runs, chosen: str) -> None:
    write(runs, "before.yaml", plan(("table_wise", [1]), ("table_wise", [0])))
    folder = f"snapshots.url=of-{chosen.rpartition('=')[2]}"
    runs.ranks("training.steps=2", folder, chosen)
    after = runs.ratings(folder, "snapshots.resume=true", "plan=auto")
    assert after.end.resumed_steps == 2
    whole = runs.ratings()
    assert after.losses == pytest.approx(whole.losses[2:], rel=1e-5)
    assert after.rows == whole.rows
