"""Every key of a configuration has an effect on `sparring train`: data, model, tables, optimizers.

The other keys are in the other files `test_effects_*`.

The file is long because each key has an effect of its own.
"""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.errors import CapacityError, ConfigError, InvalidArgumentError, PeerFailure

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

from . import own_classes
from .config_runs import SHOWN, Ran, Runs, all_keys, shows


def test_every_key_has_a_test_of_its_effect() -> None:
    for each in Path(__file__).parent.glob("test_effects_*.py"):
        importlib.import_module(f".{each.stem}", __package__)
    assert set(all_keys()) == SHOWN.keys()


# -- the run ------------------------------------------------------------------------------


@shows("framework")
def test_effect_of_framework(runs: Runs) -> None:
    assert (runs.ratings().end.steps, runs.ratings("framework=idle").end.steps) == (4, 0)


@shows("seed")
def test_effect_of_seed(runs: Runs) -> None:
    assert runs.ratings("seed=4").losses != runs.ratings().losses
    assert runs.ratings("seed=3").losses == runs.ratings().losses


@shows("threads")
def test_effect_of_threads(runs: Runs) -> None:
    assert runs.ratings().threads == {(1, 1)}
    assert runs.ratings("threads=2").threads == {(2, 2)}


@shows("deadline_seconds")
def test_effect_of_deadline_seconds(runs: Runs) -> None:
    place = "rendezvous={backend: threads, options: {rank: 0, world_size: 2}}"
    began = time.monotonic()
    with pytest.raises(PeerFailure):  # the other rank never comes
        runs.ratings("collective.backend=threads", place, "deadline_seconds=0.2")
    assert time.monotonic() - began < 30  # the default is 60


# -- data ---------------------------------------------------------------------------------


@shows("model:matrix_factorization.kind")
def test_effect_of_matrix_factorization_kind(runs: Runs) -> None:
    assert runs.ratings().end.metrics.keys() == {"rmse"}
    assert runs.ratings().rows.keys() == {"user", "item"}


@shows("data:synthetic_criteo.kind", "model:dlrm.kind")
def test_effects_of_data_synthetic_criteo_kind_and_model_dlrm_kind(runs: Runs) -> None:
    assert len(runs.clicks().rows) == 26
    assert runs.clicks().end.metrics.keys() == {"auc", "log_loss"}


@shows("data:synthetic_criteo.samples", "data:synthetic_criteo.batch_size")
def test_effects_of_synthetic_criteo_samples_and_batch_size(runs: Runs) -> None:
    assert runs.clicks().samples == [32, 32, 32]
    assert runs.clicks("data.samples=40", "data.batch_size=25").samples == [25, 15]


@shows("data:synthetic_criteo.test_samples")
def test_effect_of_synthetic_criteo_test_samples(runs: Runs) -> None:
    more = runs.clicks("data.test_samples=200")
    assert more.losses == runs.clicks().losses
    assert more.end.extra["best_auc"] != runs.clicks().end.extra["best_auc"]


@shows("data:synthetic_criteo.max_ids")
def test_effect_of_synthetic_criteo_max_ids(runs: Runs) -> None:
    few = max(runs.clicks("data.max_ids=4").rows.values())
    assert few <= 5 < max(runs.clicks().rows.values())  # a missing id is one more


@shows("data:synthetic_criteo.skew")
def test_effect_of_synthetic_criteo_skew(runs: Runs) -> None:
    rows = [sum(runs.clicks(f"data.skew={skew}").rows.values()) for skew in (0, 1.1, 4)]
    assert rows[0] > rows[1] > rows[2]
    assert rows[1] == sum(runs.clicks().rows.values())


@shows("data:synthetic_criteo.missing_fraction")
def test_effect_of_synthetic_criteo_missing_fraction(runs: Runs) -> None:
    rows = [
        sum(runs.clicks(f"data.missing_fraction={part}", "data.skew=0").rows.values())
        for part in (0.05, 0.5)
    ]
    assert rows[0] > rows[1]


# -- model --------------------------------------------------------------------------------


@shows("model:matrix_factorization.dim")
def test_effect_of_matrix_factorization_dim(runs: Runs) -> None:
    runs.ratings("snapshots.url=dim", "model.dim=5")
    assert runs.snapshot("dim").tables["user"].dim == 6  # the bias is one more


@shows("model:matrix_factorization.embedding_l2", "model:matrix_factorization.bias_l2")
def test_effects_of_matrix_factorization_embedding_l2_and_bias_l2(runs: Runs) -> None:
    for name in ("embedding_l2", "bias_l2"):
        assert runs.ratings(f"model.{name}=10000").losses[0] > 2 * runs.ratings().losses[0]


@shows("model:matrix_factorization.user", "model:matrix_factorization.item")
def test_effects_of_matrix_factorization_user_and_item(runs: Runs) -> None:
    swapped = runs.ratings("model.user=item", "model.item=user")
    assert swapped.result is not None
    assert list(swapped.result.rows) == ["item", "user"]
    for key in ("user", "item"):
        with pytest.raises(
            ConfigError, match=f"model.{key} is 'film'; name one of the features of the data: "
        ):
            runs.ratings(f"model.{key}=film")


OWN = "model={kind: 'package_of_ones_own:Logits'}"
"""For `runs.clicks`: one layer over all bags and numbers."""


def write_own_model(runs: Runs) -> None:
    text = """
import torch

class Logits(torch.nn.Module):
    def __init__(self, embeddings, num_numbers, factor=1.0):
        super().__init__()
        self.embeddings, self.factor = embeddings, factor
        dims = sum(each.embedding_dim for each in embeddings.embedding_bag_configs())
        self.layer = torch.nn.Linear(dims + num_numbers, 1)

    def forward(self, numbers, features):
        pooled = self.embeddings(features).values()
        return self.factor * self.layer(torch.cat([pooled, numbers], 1))
"""
    (runs.folder / "package_of_ones_own.py").write_text(text)


@shows(
    "model:package.module:Class.kind",
    "model:package.module:Class.embedding_dim",
    "model:package.module:Class.dims",
    "model:package.module:Class.trained_for",
    "model:package.module:Class.options",
)
def test_effects_of_the_keys_of_a_model_class(runs: Runs) -> None:
    write_own_model(runs)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(runs.folder)
        made = runs.clicks(
            OWN, "model.embedding_dim=3", "model.dims={cat_2: 5}", "snapshots.url=own"
        )
        tables = runs.snapshot("own").tables
        assert {name: tables[name].dim for name in ("cat_1", "cat_2")} == {"cat_1": 3, "cat_2": 5}
        assert made.result is not None
        assert set(made.result.metrics) == {"auc", "log_loss"}
        larger = runs.clicks(OWN, "model.embedding_dim=3", "model.options={factor: 1000}")
        assert larger.losses[0] > made.losses[0]
        with pytest.raises(ConfigError, match="expected labels that are numbers"):
            runs.clicks(OWN, "model.trained_for=squared_error")
        for kind, reason in (
            ("package_of_ones_own:Others", "was not found: package_of_ones_own has no 'Others'"),
            ("no_package:Logits", "failed: No module named 'no_package'"),
            (
                "collections:ChainMap",
                "expected a class derived from torch.nn.modules.module:Module",
            ),
        ):
            with pytest.raises(ConfigError, match=reason):
                runs.clicks(f"model={{kind: '{kind}'}}")
        with pytest.raises(ConfigError, match=r"columns and many=1: .*unexpected keyword argument"):
            runs.clicks(OWN, "model.options={many: 1}")
        with pytest.raises(
            ConfigError, match=r"model\.dims contains film, but the tables are cat_1"
        ):
            runs.clicks(OWN, "model.dims={film: 5}")


@shows(
    "model:deepfm.kind",
    "model:deepfm.embedding_dim",
    "model:deepfm.hidden_layer",
    "model:deepfm.deep_layer",
)
def test_effects_of_deepfm_kind_embedding_dim_hidden_layer_and_deep_layer(runs: Runs) -> None:
    deepfm = "model={kind: deepfm, hidden_layer: 3, deep_layer: 5, embedding_dim: 2}"
    runs.clicks(deepfm, "snapshots.url=deepfm")
    runs.clicks(deepfm, "model.hidden_layer=7", "snapshots.url=hidden")
    runs.clicks(deepfm, "model.deep_layer=11", "model.embedding_dim=4", "snapshots.url=deep")
    widths = {}
    for folder in ("deepfm", "hidden", "deep"):
        arrays = runs.snapshot(folder).state("torch").arrays.values()
        widths[folder] = {array.shape[0] for array in arrays if array.ndim}
    assert 3 in widths["deepfm"] - widths["hidden"]
    assert 7 in widths["hidden"]
    assert 11 in widths["deep"] - widths["deepfm"]
    dims = [runs.snapshot(folder).tables["cat_1"].dim for folder in ("deepfm", "deep")]
    assert dims == [2, 4]


@shows("model:dlrm.pooling", "model:deepfm.pooling")
def test_effects_of_model_dlrm_pooling_and_deepfm_pooling(runs: Runs) -> None:
    for model in ("kind: dlrm, bottom_mlp: [3], top_mlp: [3]", "kind: deepfm"):
        found = [
            runs.visits(f"model={{{model}, pooling: {pooling}}}", "data.label=binary")
            for pooling in ("sum", "mean")
        ]
        assert found[0].losses != found[1].losses  # histories are of several ids
        assert found[0].end.metrics.keys() == {"auc", "log_loss"}


@shows("model:dlrm.embedding_dim", "model:dlrm.bottom_mlp", "model:dlrm.top_mlp")
def test_effects_of_dlrm_embedding_dim_bottom_mlp_and_top_mlp(runs: Runs) -> None:
    runs.clicks("snapshots.url=shapes", "model.embedding_dim=4", "model.bottom_mlp=[5]")
    runs.clicks("snapshots.url=tops", "model.top_mlp=[7, 6]")
    widths = {}
    for folder in ("shapes", "tops"):
        arrays = runs.snapshot(folder).state("torch").arrays.values()
        widths[folder] = {array.shape[0] for array in arrays if array.ndim}
    assert runs.snapshot("shapes").tables["cat_1"].dim == 4
    assert runs.snapshot("tops").tables["cat_1"].dim == 2
    assert 5 in widths["shapes"] - widths["tops"]
    assert {6, 7} <= widths["tops"] - widths["shapes"]


# -- tables -------------------------------------------------------------------------------


@shows("tables.dtype")
def test_effect_of_tables_dtype(runs: Runs) -> None:
    runs.ratings("snapshots.url=halves", "tables.dtype=bfloat16")
    assert runs.snapshot("halves").tables["user"].dtype == "bfloat16"


def values(runs: Runs, initializer: str) -> Any:
    """Returns the initial embeddings of both tables, in one row."""
    found = runs.first_values(f"tables.initializer={initializer}")
    return np.concatenate([found["user"], found["item"]]).reshape(-1)


@shows("tables.initializer:zeros.kind")
def test_effect_of_zeros_kind(runs: Runs) -> None:
    assert not values(runs, "zeros").any()


@shows("tables.initializer:constant.kind", "tables.initializer:constant.value")
def test_effects_of_constant_kind_and_value(runs: Runs) -> None:
    assert (values(runs, "{kind: constant, value: 0.25}") == 0.25).all()
    assert (values(runs, "{kind: constant, value: -0.5}") == -0.5).all()


@shows(
    "tables.initializer:uniform.kind",
    "tables.initializer:uniform.low",
    "tables.initializer:uniform.high",
)
def test_effects_of_uniform_kind_low_and_high(runs: Runs) -> None:
    found = values(runs, "{kind: uniform, low: 1, high: 3}")
    assert 1 < found.min() < 1.1
    assert 2.9 < found.max() < 3
    assert values(runs, "{kind: uniform, low: -1}").max() < 0.05
    assert values(runs, "{kind: uniform, high: 1}").min() > -0.05


@shows(
    "tables.initializer:normal.kind",
    "tables.initializer:normal.mean",
    "tables.initializer:normal.stddev",
)
def test_effects_of_normal_kind_mean_and_stddev(runs: Runs) -> None:
    found = values(runs, "{kind: normal, mean: 3, stddev: 0.5}")
    assert abs(found.mean() - 3) < 0.1
    assert abs(found.std() - 0.5) < 0.1
    assert abs(found - 3).max() > 1.1  # beyond two standard deviations


@shows(
    "tables.initializer:truncated_normal.kind",
    "tables.initializer:truncated_normal.mean",
    "tables.initializer:truncated_normal.stddev",
)
def test_effects_of_truncated_normal_kind_mean_and_stddev(runs: Runs) -> None:
    found = values(runs, "{kind: truncated_normal, mean: 3, stddev: 0.5}")
    assert abs(found.mean() - 3) < 0.1
    assert 0.9 < abs(found - 3).max() <= 1  # two standard deviations


@shows("tables.initializer:package.module:Class.kind", "tables.initializer:package.module:Class.*")
def test_effects_of_the_keys_of_an_initializer_class(runs: Runs) -> None:
    own = own_classes.__name__
    for scale in (1.0, 4.0):
        values = runs.first_values(f"tables.initializer={{kind: {own}:Scaled, scale: {scale}}}")
        for each in values.values():
            assert scale / 32 <= each.min() < each.max() <= 2 * scale / 32
    with pytest.raises(
        ConfigError, match="Constant returned a str for table 'user'; return one of Zeros"
    ):
        runs.first_values(f"tables.initializer={own}:Constant")
    with pytest.raises(ConfigError, match="Absolute has no method 'initializer'"):
        runs.first_values(f"tables.initializer={own}:Absolute")
    named = runs.first_values("tables.initializer={kind: sparring:Constant, value: 2.0}")
    assert set(named["user"].ravel()) == {2.0}


@shows("tables.initializer:xavier.kind", "tables.initializer:xavier.gain")
def test_effects_of_xavier_kind_and_gain(runs: Runs) -> None:
    bound = np.sqrt(6 / 33)
    assert 0.9 * bound < abs(values(runs, "xavier")).max() <= bound
    assert 0.9 < abs(values(runs, "{kind: xavier, gain: 3}")).max() / (3 * bound) <= 1


def rows_of_once(runs: Runs, admission: str) -> int:
    """Returns the number of users with a row if each of 216 occurs in one step."""
    return runs.ratings("data.path=once.csv", f"tables.admission={admission}").rows["user"]


@shows("tables.admission:all.kind", "tables.overrides.<name>.admission")
def test_effects_of_tables_admission_all_kind_and_overrides_admission(runs: Runs) -> None:
    override = "tables.overrides={item: {admission: all}}"
    found = runs.ratings("tables.admission={kind: probability, p: 0}", override).rows
    assert (found["user"], found["item"]) == (0, runs.ratings().rows["item"])


@shows("tables.admission:frequency.kind", "tables.admission:frequency.k")
def test_effects_of_frequency_kind_and_k(runs: Runs) -> None:
    rows = [rows_of_once(runs, f"{{kind: frequency, k: {k}}}") for k in (1, 2)]
    assert rows == [216, 0]
    found = runs.ratings("tables.admission={kind: frequency, k: 3}", "training.epochs=3").end
    assert found.not_admitted["user"] == 2 * found.rows["user"] > 0


@shows("tables.admission:frequency.memory_bytes")
def test_effect_of_frequency_memory_bytes(runs: Runs) -> None:
    forgotten = []
    for size in (768, 65536):
        name = f"forgotten{size}.jsonl"
        admission = f"tables.admission={{kind: frequency, k: 5, memory_bytes: {size}}}"
        runs.ratings("data.path=once.csv", admission, f"metrics.path={name}")
        forgotten.append(runs.lines(name)[-1]["tables"]["user"]["num_forgotten"])
    assert forgotten[0] > 0 == forgotten[1]


@shows("tables.admission:probability.kind", "tables.admission:probability.p")
def test_effects_of_probability_kind_and_p(runs: Runs) -> None:
    assert rows_of_once(runs, "{kind: probability, p: 0}") == 0
    assert 50 < rows_of_once(runs, "{kind: probability, p: 0.5}") < 170
    assert rows_of_once(runs, "{kind: probability, p: 1}") == 216


@shows(
    "tables.admission:bloom.kind",
    "tables.admission:bloom.k",
    "tables.admission:bloom.false_positive_rate",
    "tables.admission:bloom.expected_keys",
    "tables.admission:bloom.memory_bytes",
)
def test_effects_of_the_keys_of_bloom(runs: Runs) -> None:
    assert rows_of_once(runs, "{kind: bloom, k: 1}") == 216
    assert rows_of_once(runs, "{kind: bloom, k: 2}") < 5
    small = "{kind: bloom, k: 2, expected_keys: 1}"
    assert rows_of_once(runs, small) > 20
    assert rows_of_once(runs, "{kind: bloom, k: 2, memory_bytes: 128}") > 5
    assert rows_of_once(runs, "{kind: bloom, k: 2, memory_bytes: 65536}") == 0
    often = "{kind: bloom, k: 2, expected_keys: 216, false_positive_rate: 0.9}"
    rarely = "{kind: bloom, k: 2, expected_keys: 216, false_positive_rate: 1.0e-9}"
    assert rows_of_once(runs, often) > 20
    assert rows_of_once(runs, rarely) == 0


@shows("tables.expire.after_steps", "tables.overrides.<name>.expire")
def test_effects_of_tables_expire_after_steps_and_overrides_expire(runs: Runs) -> None:
    override = "tables.overrides={item: {expire: {after_steps: 5}}}"
    found = runs.ratings("data.path=once.csv", "tables.expire={after_steps: 2}", override)
    # 14 steps with different ids: 16, and 8 in the last one.
    assert found.rows == {"user": 16 + 8, "item": 4 * 16 + 8}
    assert found.end.skipped == {"rows_expired": 2 * 216 - 24 - 72}
    assert "rows_expired" not in runs.ratings().end.skipped


@shows("tables.expire.after_days")
def test_effect_of_expire_after_days(runs: Runs) -> None:
    # The clock is checked after steps 100 and 200.
    found = runs.ratings(
        "data.path=once.csv", "data.batch_size=1", "tables.expire={after_days: 1.0e-9}"
    )
    assert found.rows["user"] == 216 - 100


@shows("tables.placement", "tables.overrides.<name>.placement")
def test_effects_of_tables_placement_and_overrides_placement(runs: Runs) -> None:
    def rows(name: str, *overrides: str) -> list[tuple[int, int]]:
        runs.ranks(f"metrics.path={name}-{{rank}}", *overrides)
        tables = [runs.lines(f"{name}-{rank}")[-1]["tables"] for rank in (0, 1)]
        return [(each["user"]["rows"], each["item"]["rows"]) for each in tables]

    everything = tuple(runs.ratings().rows.values())
    sharded = rows("sharded")
    assert tuple(map(sum, zip(*sharded, strict=True))) == everything
    assert rows("copied", "tables.placement=replicated") == [everything, everything]
    one = rows("one", "tables.overrides={user: {placement: replicated}}")
    assert one == [(everything[0], items) for _, items in sharded]


@shows("tables.memory_bytes")
def test_effect_of_tables_memory_bytes(runs: Runs) -> None:
    with pytest.raises(CapacityError, match=r"tables\.memory_bytes"):
        runs.ratings("tables.memory_bytes=1000")
    assert runs.ratings("tables.memory_bytes=1 GiB").losses == runs.ratings().losses


@shows("tables.overrides.<name>.initializer")
def test_effect_of_overrides_initializer(runs: Runs) -> None:
    found = runs.first_values("tables.overrides={user: {initializer: zeros}}")
    assert not found["user"].any()
    assert found["item"].all()


# -- storage and optimizers ---------------------------------------------------------------


@shows("storage.backend", "storage.options")
def test_effects_of_storage_backend_and_options(runs: Runs) -> None:
    stacked = runs.ratings("storage.backend=tiered", "storage.options={tiers: [memory, memory]}")
    assert [tier["backend"] for tier in stacked.end.tiers["user"]] == ["memory", "memory"]
    assert not runs.ratings().end.tiers
    assert runs.ratings("storage.options={capacity: 4, policy: lru}").rows == {"user": 4, "item": 4}


def differs_after_the_first_step(one: Ran, other: Ran) -> bool:
    """Returns whether another optimizer was used: the first loss is that of the initial values."""
    return one.losses[0] == other.losses[0] and one.losses[1:] != other.losses[1:]


@shows(
    "optimizer.sparse.name",
    "optimizer.sparse.lr",
    "optimizer.sparse.tables",
    "optimizer.sparse.*",
)
def test_effects_of_sparse_name_lr_tables_and_others(runs: Runs) -> None:
    for sparse in ("{name: sgd}", "{lr: 0.3}", "{tables: {user: {lr: 0.3}}}", "{eps: 0.1}"):
        changed = runs.ratings(f"optimizer.sparse={sparse}")
        assert differs_after_the_first_step(runs.ratings(), changed), sparse
    whole = runs.ratings("optimizer.sparse={lr: 0.3}")
    assert runs.ratings("optimizer.sparse={tables: {user: {lr: 0.3}}}").losses != whole.losses


@shows("optimizer.sparse.update")
def test_effect_of_sparse_update(runs: Runs) -> None:
    shadow = "optimizer.sparse={name: torch.optim:Adagrad, update: shadow}"
    auto = runs.ratings("optimizer.sparse={name: torch.optim:Adagrad}")
    assert np.allclose(runs.ratings(shadow).losses, auto.losses, rtol=1e-5)
    # An update method has no code of the framework to fall back on.
    with pytest.raises(InvalidArgumentError, match="update='shadow' requires"):
        runs.ratings("optimizer.sparse={name: adagrad, update: shadow}")


@shows("optimizer.dense.name", "optimizer.dense.lr", "optimizer.dense.*")
def test_effects_of_dense_name_lr_and_others(runs: Runs) -> None:
    for dense in ("{name: sgd}", "{lr: 0.3}", "{eps: 0.1}"):
        changed = runs.clicks(f"optimizer.dense={dense}")
        assert differs_after_the_first_step(runs.clicks(), changed), dense
