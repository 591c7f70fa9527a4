"""Runs sparring's test kit for models, which trains the model on lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sparring_torch", reason='pip install "sparring-jsonl[torch]"')

from sparring_testing import ModelKindTests


class TestFactorizationMachine(ModelKindTests):
    @pytest.fixture
    def model(self) -> dict[str, Any]:
        return {"kind": "factorization_machine", "dim": 4}

    @pytest.fixture
    def data(self, tmp_path: Path) -> dict[str, Any]:
        random = np.random.default_rng(3)
        lines = [
            {"user": f"u{user}", "item": item, "price": price, "clicked": (user + item) % 2}
            for user, item, price in zip(
                random.integers(0, 20, 400).tolist(),
                random.integers(0, 12, 400).tolist(),
                random.random(400).tolist(),
                strict=True,
            )
        ]
        path = tmp_path / "clicks.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)) + "\n")
        return {
            "kind": "json_lines", "path": str(path), "label": "clicked", "ids": ["user", "item"],
            "numbers": ["price"], "batch_size": 32,
        }  # fmt: skip
