"""Two towers and the sequence model on ranks, compared to popularity."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sparring_torch", reason="needs sparring-torch")
pytest.importorskip("sparring_packed", reason="needs sparring-packed, which ranks all items")

from sparring import list_snapshots, open_snapshot
from sparring.collective.local import LocalGroup
from sparring.contracts.ranks.collective import Collective
from sparring_cli.application import main
from sparring_testing.processes.rank_threads import run_ranks
from sparring_train.columns import Column, ColumnBatch
from sparring_train.config.sections.kinds import Ranking
from sparring_train.data.dataset import OpenRequest
from sparring_train.loop.ranking_evaluation import RankingEvaluation
from sparring_train.loop.step_items import ItemCounts, StepItems
from sparring_train.run.ranks import Ranks

from ..config.config_runs import VISITS, Runs
from ..data.visits import VisitsData, VisitsDataset

TOWERS = "model={kind: two_towers, embedding_dim: 8}"
SEQUENCE = (
    "model={kind: sequence, embedding_dim: 8, hidden_layer: 16, blocks: 1, dropout: 0, user: user}"
)
CONFIG = """
data: {kind: table, path: rows.csv, categorical: [user, item], required: [user, item],
  batch_size: 12, split: {exact_fraction: 0.1}}
model: {kind: two_towers, embedding_dim: 4, user: [user], item: [item]}
snapshots: {url: runs}
"""
STEPS = (
    "training.epochs=10",
    "optimizer={sparse: {name: adam, lr: 0.02}, dense: {name: adam, lr: 0.01}}",
)


def visits(**settings: Any) -> VisitsDataset:
    section = VisitsData(kind="visits", batch_size=50, **settings)
    return VisitsDataset(section, OpenRequest(3, None))


def recall_of_popularity(data: VisitsDataset) -> float:
    """Returns the recall of the ten most frequent items that the user has not seen."""
    counts = Counter(item for _, _, item, _, _ in data.train)
    seen = {(user, item) for user, _, item, _, _ in data.train}
    hits = 0
    for user, _, item, _, _ in data.test:
        unseen = [each for each, _ in counts.most_common() if (user, each) not in seen]
        hits += item in unseen[:10]
    return hits / len(data.test)


@pytest.mark.parametrize("model", [TOWERS, SEQUENCE], ids=["two towers", "sequence"])
def test_planted_visits_are_learned_better_than_by_popularity(model: str, runs: Runs) -> None:
    ran = runs.visits(model, *STEPS)
    assert ran.losses[-1] < 0.5 * ran.losses[0]
    assert ran.end.metrics["recall@10"] > 3 * recall_of_popularity(visits())
    assert ran.end.metrics["recall@10"] > 0.9


@pytest.mark.parametrize(
    "given",
    [["data.batch_size=50"], ["training.micro_batches=2"], ["data.parts=true"]],
    ids=["uneven parts", "micro-batches", "data of each rank"],
)
def test_three_ranks_train_like_one(given: list[str], runs: Runs) -> None:
    steps = ("training.epochs=2", STEPS[1])
    alone = runs.visits(TOWERS, *steps, *given)
    together = runs.ranks(TOWERS, *steps, *given, text=VISITS, world_size=3)
    assert together[0].losses == pytest.approx(alone.losses, rel=1e-6)
    for each in together:
        assert each.end.metrics == pytest.approx(alone.end.metrics, abs=1e-6)


def test_three_ranks_train_a_sequence_model_like_one(runs: Runs) -> None:
    """Ranks are threads, which share torch's random numbers; so layers begin as in a snapshot."""
    given = (SEQUENCE, STEPS[1])
    runs.visits(*given, "training.epochs=1", "snapshots.url=begun")
    shutil.copytree("begun", "begun-for-ranks")
    rest = (*given, "training.epochs=5", "snapshots.resume=true")
    alone = runs.visits(*rest, "snapshots.url=begun")
    together = runs.ranks(*rest, "snapshots.url=begun-for-ranks", text=VISITS, world_size=3)
    assert alone.losses[-1] < 0.8 * alone.losses[0]
    assert together[0].losses == pytest.approx(alone.losses, rel=1e-6)
    for each in together:
        assert each.end.metrics == pytest.approx(alone.end.metrics, abs=1e-6)


def test_examples_without_a_user_or_an_item_are_left_out(runs: Runs) -> None:
    whole = runs.visits(TOWERS, *STEPS)
    found = runs.visits(TOWERS, *STEPS, "data.missing=true")
    assert found.losses == pytest.approx(whole.losses, rel=1e-6)
    assert found.end.metrics == pytest.approx(whole.end.metrics, abs=1e-6)
    assert found.rows == whole.rows


def test_a_run_continues_from_a_snapshot(runs: Runs) -> None:
    """Counts of items are saved, or the correction would start again."""
    whole = runs.visits(TOWERS, *STEPS)
    saved = (TOWERS, STEPS[1], "snapshots.url=on")
    first = runs.visits(*saved, "training.epochs=4")
    rest = runs.visits(*saved, "training.epochs=10", "snapshots.resume=true")
    assert [*first.losses, *rest.losses] == pytest.approx(whole.losses, rel=1e-6)
    assert rest.end.metrics == pytest.approx(whole.end.metrics, abs=1e-6)


def test_counts_estimate_frequencies() -> None:
    counts = ItemCounts()
    assert np.exp(counts.add(np.array([7, 7, -3, 7]))).tolist() == pytest.approx(
        [0.75, 0.75, 0.25, 0.75]
    )
    assert np.exp(counts.add(np.array([2**62, -3]))).tolist() == pytest.approx([1 / 6, 2 / 6])
    again = ItemCounts()
    again.restore({"item_counts": counts.state()})
    more = np.array([7, 5])
    assert again.add(more).tolist() == counts.add(more).tolist()


def test_erased_items_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of items are saved for the log-Q correction, and contain ids."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{user},{item}" for user in range(8) for item in range(6)]
    Path("rows.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    Path("run.yaml").write_text(CONFIG)
    Path("ids.txt").write_text("4\n77\n")
    assert main(["train", "run.yaml"]) == 0

    def counted() -> dict[int, int]:
        arrays = open_snapshot(list_snapshots("runs")[-1]).state("item_counts").arrays
        return dict(zip(arrays["ids"].tolist(), arrays["counts"].tolist(), strict=True))

    whole = counted()
    assert set(whole) == set(range(6))
    # Keys of another table may have the same numbers.
    for table, expected in (("user", whole), ("item", {**whole})):
        expected.pop(4 if table == "item" else -1, None)
        erase = ["erase", table, "--keys", "ids.txt", "--everywhere", "run.yaml", "--yes"]
        assert main([*erase, "-o", f"{table}.json"]) == 0
        assert counted() == expected


def test_items_of_a_step_are_those_of_all_ranks() -> None:
    whole = ColumnBatch({"item": Column(np.arange(7))}, np.empty((7, 0), np.float32))
    group = LocalGroup(1)
    with group.join(0) as collective:
        step = StepItems.of(whole, "item", Ranks(collective))
    assert step.ids.tolist() == list(range(7))
    assert step.first == 0


class Planted:
    """Vectors of ids, which evaluation reads."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(8)
        self.users = self._random.normal(size=(60, 6)).astype(np.float32)
        self.items = self._random.normal(size=(80, 6)).astype(np.float32)

    def predict(self, batch: ColumnBatch) -> Any:
        users = self.users[batch.ids["user"].ids]
        # Vectors of users are requested with any item.
        return np.stack([users, self.items[(batch.ids["item"].ids - 1000) % 80]])


@pytest.mark.parametrize("query", ["user", None])
def test_all_items_are_ranked_without_those_seen(query: str | None) -> None:
    data, planted = visits(label="binary"), Planted()
    ranking = Ranking(item=("item",), user="user", query=query, positive=1.0)
    with LocalGroup(1).join(0) as collective:
        found = RankingEvaluation(ranking, data).metrics(planted.predict, Ranks(collective))
    known = np.unique([item for _, _, item, _, _ in data.train])
    hits, ndcg, mrr = [], [], []
    for user, _, item, label, _ in data.test:
        if label < 1:
            continue
        seen = {each for other, _, each, _, _ in data.train if other == user}
        unseen = np.array([each for each in known if each not in seen])
        scores = planted.items[unseen - 1000] @ planted.users[user]
        place = list(unseen[np.argsort(-scores, kind="stable")]).index(item)
        hits.append(place < 10)
        ndcg.append((place < 10) / np.log2(place + 2))
        mrr.append((place < 10) / (place + 1))
    expected = {
        "recall@10": np.mean(hits),
        "ndcg@10": np.mean(ndcg),
        "mrr@10": np.mean(mrr),
        "hit_rate@10": np.mean(hits),
    }
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_popularity_ranks_unseen_items_by_their_training_examples(num_ranks: int) -> None:
    data, planted = visits(), Planted()
    counts = Counter(item for _, _, item, _, _ in data.train)
    hits = []
    for user, _, item, _, _ in data.test:
        seen = {each for other, _, each, _, _ in data.train if other == user}
        unseen = sorted(counts.keys() - seen, key=lambda each: (-counts[each], each))
        hits.append(item in unseen[:10])

    def measured(collective: Collective) -> dict[str, float]:
        ranking = Ranking(item=("item",), user="user", query="user")
        evaluation = RankingEvaluation(ranking, data, measures_popularity=True)
        evaluation.metrics(planted.predict, Ranks(collective))
        return evaluation.popularity

    for found in run_ranks(num_ranks, measured):
        assert found["recall@10"] == pytest.approx(np.mean(hits))
        assert set(found) == {"recall@10", "ndcg@10", "mrr@10", "hit_rate@10"}


class Sessions(VisitsDataset):
    """Visits with a further feature: each user has one session, with another id."""

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        return map(self._with_session, super().batches(epoch))

    def test_batches(self) -> Iterator[ColumnBatch]:
        return map(self._with_session, super().test_batches())

    @staticmethod
    def _with_session(batch: ColumnBatch) -> ColumnBatch:
        session = Column(batch.ids["user"].ids * 7 + 5)
        return replace(batch, ids={**batch.ids, "session": session})


def test_items_that_a_user_has_seen_are_not_ranked_for_a_session() -> None:
    section, planted = VisitsData(kind="visits", batch_size=50), Planted()
    data = Sessions(section, OpenRequest(3, None))
    found = []
    with LocalGroup(1).join(0) as collective:
        for query in ("user", "session"):
            ranking = Ranking(item=("item",), user="user", query=query)
            evaluation = RankingEvaluation(ranking, data)
            found.append(evaluation.metrics(planted.predict, Ranks(collective)))
    assert found[0] == found[1]
