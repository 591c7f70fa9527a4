"""Test items that the user had before: sequence models rank them, and the metrics show their share."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sparring_torch", reason="needs sparring-torch")
pytest.importorskip("sparring_packed", reason="needs sparring-packed, which ranks all items")

from ..config.config_runs import Runs

CONFIG = """
data: {kind: table, path: rows.csv, categorical: [user, item], required: [user, item], time: at,
  batch_size: 16, history: {of: item, by: user, length: 20}, split: {leave_one_out: user}}
model: {kind: sequence, embedding_dim: 8, hidden_layer: 8, blocks: 1, dropout: 0, user: user, item: item}
optimizer: {sparse: {name: adam, lr: 0.05}, dense: {name: adam, lr: 0.01}}
"""
TOWERS = (
    "model={kind: two_towers, embedding_dim: 4, user: [user], item: [item]}",
    "data.history=null",
)


def write_rows() -> None:
    """Each of 12 users has three items in turn; the last item of two users is new to them."""
    lines = ["user,item,at"]
    for user in range(12):
        items = [user + 20 * (at % 3) for at in range(8)]
        items[7] = (user + 1) % 12 + 20 if user < 2 else items[7]
        lines += [f"{user},{item},{at}" for at, item in enumerate(items)]
    Path("rows.csv").write_text("\n".join([*lines, ""]))


def test_sequence_models_rank_items_that_the_user_had_before(runs: Runs) -> None:
    write_rows()
    found = runs.ranks("training.epochs=3", text=CONFIG, world_size=1)[0].end.metrics
    assert found["repeat_share"] == pytest.approx(10 / 12)
    assert found["repeat_recall@10"] > 0
    whole = (10 * found["repeat_recall@10"] + 2 * found["new_recall@10"]) / 12
    assert found["recall@10"] == pytest.approx(whole)


@pytest.mark.parametrize("given", [("model.exclude_seen=true",), TOWERS])
def test_excluded_items_are_counted(
    given: tuple[str, ...], runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows()
    found = runs.ranks(*given, text=CONFIG, world_size=1)[0].end.metrics
    assert found["repeat_share"] == pytest.approx(10 / 12)
    assert found.get("repeat_recall@10", 0) == 0
    assert "10 of 12 test items were not ranked, because their users had them before" in caplog.text
