"""Opens a table in RocksDB, and prints each librocksdb that the process then has loaded.

    python tools/bundled_rocksdb.py ENVIRONMENT

Fails if one of them is outside the environment whose Python runs it.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import sparring

with tempfile.TemporaryDirectory() as path:
    table = sparring.TableConfig("ids", 4)
    with sparring.open_storage("rocksdb", table, path=path) as storage:
        storage.upsert(np.arange(3), np.ones((3, 4), np.float32))
        assert storage.size == 3
        lines = Path("/proc/self/maps").read_text().splitlines()
loaded = {line.split(maxsplit=5)[5] for line in lines if "librocksdb" in line}
foreign = {each for each in loaded if not each.startswith(sys.argv[1])}
if foreign or not loaded:
    sys.exit(f"the wheel must contain librocksdb; loaded: {loaded or 'none'}")
print("librocksdb is part of the wheel:", *loaded)
