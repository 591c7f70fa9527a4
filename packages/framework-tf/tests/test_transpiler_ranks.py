"""A Keras model for one machine on two ranks of mpiexec."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow")

SCRIPT = """
import sys

import keras
import numpy as np
from keras import layers

from sparring_tf import distribute, restore

keras.utils.set_random_seed(3)
user, items = keras.Input((), dtype="int32"), keras.Input((4,), dtype="int64")
mean = layers.GlobalAveragePooling1D()(layers.Embedding(30, 4, name="items")(items))
joined = layers.Concatenate()([layers.Embedding(30, 4, name="user")(user), mean])
model = keras.Model([user, items], layers.Dense(1)(joined))
optimizer, rank, size = keras.optimizers.SGD(0.5), 0, 1
if "--ranks" in sys.argv:
    model, optimizer = distribute(model, optimizer)
    collective = optimizer.container.collective
    rank, size = collective.rank, collective.world_size
    assert size == 2
model.compile(optimizer=optimizer, loss="mse")
generator = np.random.default_rng(1)
part = slice(rank * 8 // size, (rank + 1) * 8 // size)
for _ in range(20):
    given = generator.integers(0, 30, 8), generator.integers(0, 30, (8, 4))
    target = generator.random((8, 1), np.float32)
    model.train_on_batch([each[part] for each in given], target[part])
plain = restore(model) if "--ranks" in sys.argv else model
np.savez(f"{size}-{rank}.npz", *plain.get_weights())
if "--ranks" in sys.argv:
    optimizer.container.close()
"""

MPIEXEC = shutil.which("mpiexec")


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("sparring_mpi") is None or MPIEXEC is None,
    reason='needs sparring-mpi and mpiexec: pip install "sparring[mpi]"',
)
def test_two_ranks_equal_one_process(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    alone = [sys.executable, "script.py"]
    for command in (alone, [str(MPIEXEC), "-n", "2", *alone, "--ranks"]):
        done = subprocess.run(
            command,
            check=False,  # the assertion below shows its output
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, done.stderr
    expected = np.load(tmp_path / "1-0.npz")
    for rank in range(2):
        found = np.load(tmp_path / f"2-{rank}.npz")
        assert found.files == expected.files
        for name in found.files:
            scale = np.abs(expected[name]).max()
            assert np.abs(found[name] - expected[name]).max() <= 1e-6 * scale
