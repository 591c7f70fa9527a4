"""Where sparring-rocksdb could not be built, its tests say what it needs."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("sparring_rocksdb") is None:
    pytest.skip(
        "sparring-rocksdb is not installed; it needs: sudo apt install librocksdb-dev",
        allow_module_level=True,
    )
