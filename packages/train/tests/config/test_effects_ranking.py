"""Every key of the models that rank items has an effect on `sparring train`."""

from __future__ import annotations

import pytest

from sparring.errors import ConfigError

pytest.importorskip("sparring_torch", reason="needs sparring-torch")
pytest.importorskip("sparring_packed", reason="needs sparring-packed, which ranks all items")

from .config_runs import Ran, Runs, shows

KINDS = ("two_towers", "sequence")

SEQUENCE = "model={kind: sequence, embedding_dim: 4, hidden_layer: 8, blocks: 1, dropout: 0}"


def sequence(runs: Runs, *overrides: str) -> Ran:
    return runs.visits(SEQUENCE, *overrides)


def both(runs: Runs, *overrides: str) -> list[tuple[Ran, Ran]]:
    """Runs of both kinds without and with `overrides`."""
    return [
        (runs.visits(), runs.visits(*overrides)),
        (sequence(runs), sequence(runs, *overrides)),
    ]


@shows(*(f"model:{kind}.kind" for kind in KINDS))
def test_effect_of_kind(runs: Runs) -> None:
    metrics = {"recall@10", "ndcg@10", "mrr@10", "hit_rate@10"}
    assert runs.visits().end.metrics.keys() == sequence(runs).end.metrics.keys() == metrics
    assert runs.visits().rows.keys() == {"user", "item"}
    assert sequence(runs).rows.keys() == {"item"}


@shows("model:two_towers.embedding_dim", "model:sequence.embedding_dim")
def test_effect_of_embedding_dim(runs: Runs) -> None:
    runs.visits("model.embedding_dim=6", "snapshots.url=towers")
    sequence(runs, "model.embedding_dim=6", "snapshots.url=sequence")
    for folder in ("towers", "sequence"):
        assert runs.snapshot(folder).tables["item"].dim == 6


@shows("model:two_towers.user", "model:two_towers.item", "model:two_towers.pooling")
def test_effects_of_two_towers_user_item_and_pooling(runs: Runs) -> None:
    wide = ("model.user=[user, history]", "model.item=[item, group]")
    assert runs.visits(*wide).rows.keys() == {"user", "item", "group"}
    mean = runs.visits(*wide, "model.pooling=mean")
    assert mean.losses != runs.visits(*wide).losses


@shows("model:two_towers.layers")
def test_effect_of_two_towers_layers(runs: Runs) -> None:
    runs.visits("model.layers=[7]", "snapshots.url=layers")
    widths = {each.shape for each in runs.snapshot("layers").state("torch").arrays.values()}
    assert {(7, 4), (4, 7)} <= widths


@shows(*(f"model:{kind}.temperature" for kind in KINDS))
def test_effect_of_temperature(runs: Runs) -> None:
    for plain, cold in both(runs, "model.temperature=0.001"):
        assert abs(cold.losses[0] - plain.losses[0]) > 0.1


@shows(*(f"model:{kind}.normalize" for kind in KINDS))
def test_effect_of_normalize(runs: Runs) -> None:
    # Products of short vectors are nearly equal; products of vectors of length 1 are from -1 to 1.
    for plain, longer in both(runs, "model.normalize=true"):
        assert abs(longer.losses[0] - plain.losses[0]) > 0.001


@shows(*(f"model:{kind}.log_q" for kind in KINDS))
def test_effect_of_log_q(runs: Runs) -> None:
    for plain, uncorrected in both(runs, "model.log_q=false"):
        assert uncorrected.losses != plain.losses


@shows(*(f"model:{kind}.positive" for kind in KINDS))
def test_effect_of_positive(runs: Runs) -> None:
    clicks = "data.label=binary"  # half of them are 0, and left out without a message
    for run in (runs.visits, lambda *given: sequence(runs, *given)):
        plain, every = run(clicks), run(clicks, "model.positive=0")
        assert plain.losses[0] < 0.7 * every.losses[0]
        assert run("data.label=number").losses == every.losses
        with pytest.raises(ConfigError, match=r"model\.positive is 4, but the data has no label"):
            run("model.positive=4")


@shows("model:sequence.history", "model:sequence.item")
def test_effects_of_sequence_history_and_item(runs: Runs) -> None:
    for key, name, reason in (
        ("history", "item", "model.history is 'item', which is not a list"),
        ("item", "history", "model.item is 'history', which is a list"),
        ("item", "user", "must share a table, found 'item' and 'user'"),
        (
            "item",
            "film",
            "model.item is 'film'; name one of the features of the data: user, history, item",
        ),
    ):
        with pytest.raises(ConfigError, match=reason):
            sequence(runs, f"model.{key}={name}")


@shows("model:sequence.user", "model:sequence.exclude_seen")
def test_effects_of_sequence_user_and_exclude_seen(runs: Runs) -> None:
    """Visits in training are more than the history has, and no user visits an item again."""
    long = ("data.visits=10", "training.epochs=8", "model.user=user")
    new = sequence(runs, *long, "model.exclude_seen=true").end.metrics["recall@10"]
    assert new > sequence(runs, *long).end.metrics["recall@10"]
    less = sequence(runs, *long, "model.exclude_seen=true", "model.user=null")
    assert new > less.end.metrics["recall@10"]


@shows("model:sequence.length", "model:sequence.blocks", "model:sequence.hidden_layer")
def test_effects_of_sequence_length_blocks_and_hidden_layer(runs: Runs) -> None:
    shape = ("model.length=3", "model.blocks=2", "model.hidden_layer=9", "snapshots.url=shape")
    sequence(runs, *shape)
    arrays = runs.snapshot("shape").state("torch").arrays
    shapes = {name: each.shape for name, each in arrays.items()}
    assert (3, 4) in shapes.values()
    assert (9, 4) in shapes.values()
    assert any("blocks.1." in name for name in shapes)
    assert not any("blocks.2." in name for name in shapes)


@shows("model:sequence.heads", "model:sequence.dropout")
def test_effects_of_sequence_heads_and_dropout(runs: Runs) -> None:
    assert sequence(runs, "model.heads=4").losses != sequence(runs).losses
    assert sequence(runs, "model.dropout=0.5").losses != sequence(runs).losses
    with pytest.raises(
        ConfigError, match=r"embedding_dim must be a multiple of model\.heads, found 4 and 3"
    ):
        sequence(runs, "model.heads=3")


@shows(*(f"model:package.module:Class.{name}" for name in ("user", "item", "positive")))
def test_effects_of_user_item_and_positive_of_a_model_class(runs: Runs) -> None:
    text = """
import torch

class Pair(torch.nn.Module):
    def __init__(self, embeddings, num_numbers):
        super().__init__()
        self.embeddings = embeddings

    def forward(self, numbers, features):
        pooled = self.embeddings(features)
        return pooled["user"] + pooled["history"], pooled["item"]
"""
    (runs.folder / "pairs_of_ones_own.py").write_text(text)
    own = "model={kind: 'pairs_of_ones_own:Pair', trained_for: ranking, embedding_dim: 8}"
    steps = ("training.epochs=12", "optimizer.sparse={name: adam, lr: 0.02}")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(runs.folder)
        found = runs.visits(own, *steps).end.metrics["recall@10"]
        assert found > 0.5
        for key in ("user", "item"):
            with pytest.raises(
                ConfigError, match=f"model.{key} is 'history'; name a feature with one id"
            ):
                runs.visits(own, f"model.{key}=history")
        clicks = runs.visits(own, "data.label=binary")
        every = runs.visits(own, "data.label=binary", "model.positive=0")
        assert clicks.losses[0] < 0.7 * every.losses[0]
        with pytest.raises(ConfigError, match=r"model\.positive is 4, but the data has no label"):
            runs.visits(own, "model.positive=4")
