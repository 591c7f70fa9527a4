"""Trains and tests popularity, or ALS of implicit, in a separate process; prints one line of JSON.

Run as ``python -m benchmarks.peers.implicit_process FOLDER MODEL …``, where `recbole_split.prepare`
wrote the split. The test is that of `recbole_process`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recbole_split import PARTS, TOP_K, Split
from sparring_train.quality.rankings import compute_ranking_metrics

__all__: list[str] = []

# The best NDCG@10 in validation among 40 random trials, rounded.
ALS = {"factors": 128, "regularization": 10.0, "alpha": 3.0, "iterations": 30}


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Trains and tests; returns the metrics, seconds and epochs."""
    split = Split.load(given.folder)
    is_train, is_test = split.of_part(given.part)
    users = np.unique(split.users, return_inverse=True)[1][is_train]
    candidates, items = np.unique(split.items[is_train], return_inverse=True)
    start = time.perf_counter()
    if given.model == "popularity":
        scores = np.tile(np.bincount(items).astype(float), (users.max() + 1, 1))
    else:
        scores = _als_scores(users, items, given)
    seconds = time.perf_counter() - start
    scores[users, items] = -np.inf
    ranked = candidates[np.argsort(-scores, axis=1, kind="stable")[:, :TOP_K]]
    relevant = split.items[is_test]
    found = compute_ranking_metrics(ranked, (relevant, np.arange(len(relevant) + 1)), k=TOP_K)
    metrics = {"recall@10": found.recall, "ndcg@10": found.ndcg, "mrr@10": found.mrr}
    epochs = 1 if given.model == "popularity" else ALS["iterations"]
    return {"metrics": metrics, "seconds": seconds, "epochs": epochs}


def _als_scores(users: Any, items: Any, given: argparse.Namespace) -> Any:
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    model = AlternatingLeastSquares(**ALS, random_state=given.seed, num_threads=given.threads)
    ones = np.ones(len(users), np.float32)
    model.fit(csr_matrix((ones, (users, items))), show_progress=False)
    return model.user_factors @ model.item_factors.T


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.implicit_process")
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", choices=("popularity", "ALS"))
    parser.add_argument("--part", choices=tuple(PARTS), default="test")
    for name in ("seed", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    print(json.dumps(run(parser.parse_args())))
