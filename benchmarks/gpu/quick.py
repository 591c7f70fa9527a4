"""``python -m benchmarks.gpu.quick``: writes, reads and erases rows of a table on a GPU, in seconds.

Run it first on a new machine. With ``CUDA_LAUNCH_BLOCKING=1`` an error contains its kernel launch.
"""

from __future__ import annotations

import sys

import numpy as np

from sparring import TableConfig, open_storage

__all__ = ["main"]


def main(device: str) -> None:
    """Raises an error if the rows read differ from those written."""
    table = TableConfig("quick", 16, seed=1)
    keys = np.random.default_rng(0).permutation(1 << 20)[:10_000]
    rows = np.arange(keys.size * 16, dtype=np.float32).reshape(-1, 16)
    with open_storage("hkv", table, device=device) as storage:
        storage.upsert(keys, rows)
        found = storage.find(keys)
        assert found.found.all()
        assert np.array_equal(found.rows.view(np.float32).reshape(rows.shape), rows)
        assert storage.erase(keys[:4000]) == 4000
        assert storage.size == 6000
        found = storage.find(keys)
        assert np.array_equal(found.found.astype(bool), np.arange(keys.size) >= 4000)
    print(f"{device}: 10,000 rows written and read, 4,000 erased")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
