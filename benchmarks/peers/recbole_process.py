"""Trains and tests one model of RecBole in a separate process; prints one line of JSON.

Run as ``python -m benchmarks.peers.recbole_process FOLDER MODEL …``, where `recbole_split.prepare`
wrote the split. RecBole trains with its own loop and early stopping. The test is ours, so that both rank
the same items: those of the training part that the user has not seen.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.recbole_split import BATCH_SIZE, DIM, TOP_K, Split
from sparring_train.quality.rankings import compute_ranking_metrics

__all__: list[str] = []


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Trains and tests; returns the metrics, seconds and epochs."""
    # RecBole 1.2.1 uses names that NumPy 2 has removed.
    for old, new in {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}.items():
        setattr(np, old, new)
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.utils import get_model, get_trainer, init_seed

    folder, name, seed = given.folder, given.model, given.seed
    settings = {
        "data_path": str(folder),
        "checkpoint_dir": str(folder / f"{name}-{seed}"),
        "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
        "eval_args": {
            "split": {"LS": "valid_and_test"}, "order": "TO", "group_by": "user", "mode": "full",
        },
        # The default of 10 stops BPR long before its optimum, because few users make validation noisy.
        "stopping_step": 30,
        "seed": seed, "epochs": given.epochs, "use_gpu": False, "show_progress": False,
        "embedding_size": DIM, "MAX_ITEM_LIST_LENGTH": given.length,
    }  # fmt: skip
    if name == "SASRec":
        # Its loss is a cross entropy over all items.
        settings |= {
            "train_neg_sample_args": None,
            "train_batch_size": BATCH_SIZE,
            "n_layers": given.blocks,
        }
    # RecBole parses the command line, too.
    sys.argv = sys.argv[:1]
    config = Config(model=name, dataset="ratings", config_dict=settings)
    init_seed(seed, reproducibility=True)
    dataset = create_dataset(config)
    train, valid, _ = data_preparation(config, dataset)
    init_seed(seed, reproducibility=True)
    model = get_model(name)(config, train.dataset)
    trainer = get_trainer(config["MODEL_TYPE"], name)(config, model)
    start = time.perf_counter()
    trainer.fit(train, valid, saved=True, show_progress=False)
    seconds = time.perf_counter() - start
    best = torch.load(trainer.saved_model_file, weights_only=False)
    model.load_state_dict(best["state_dict"])
    found = tested(model, dataset, Split.load(folder), given.length if name == "SASRec" else None)
    return {"metrics": found, "seconds": seconds, "epochs": best["epoch"] + 1}


def tested(model: Any, dataset: Any, split: Split, length: int | None) -> dict[str, float]:
    """Computes metrics of the rankings of all training items, for the last item of each user."""
    from recbole.data.interaction import Interaction

    def ids(field: str, numbers: Any) -> Any:
        return dataset.token2id(field, np.asarray(numbers).astype(str))

    candidates = ids("item_id", np.unique(split.items[split.is_train]))
    is_candidate = np.zeros(dataset.item_num, np.bool_)
    is_candidate[candidates] = True
    ranked, relevant = [], []
    model.eval()
    for rows in split.by_user():
        items = ids("item_id", split.items[rows])
        fields = {"user_id": torch.from_numpy(ids("user_id", split.users[rows[:1]]))}
        if length is not None:
            history = items[:-1][-length:]
            padded = np.pad(history, (0, length - len(history)))
            fields["item_id_list"] = torch.from_numpy(padded)[None]
            fields["item_length"] = torch.tensor([len(history)])
        with torch.no_grad():
            scores = model.full_sort_predict(Interaction(fields)).view(-1).numpy()
        seen = items[:-2] if length is None else items[:-1]
        allowed = is_candidate.copy()
        allowed[seen] = False
        scores = np.where(allowed, scores, -np.inf)
        ranked.append(np.argsort(-scores, kind="stable")[:TOP_K])
        relevant.append(items[-1])
    offsets = np.arange(len(relevant) + 1)
    found = compute_ranking_metrics(np.array(ranked), (np.array(relevant), offsets), k=TOP_K)
    return {"recall@10": found.recall, "ndcg@10": found.ndcg, "mrr@10": found.mrr}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.recbole_process")
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", choices=("BPR", "SASRec"))
    for name in ("seed", "epochs", "threads", "length", "blocks"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(json.dumps(run(given)))
