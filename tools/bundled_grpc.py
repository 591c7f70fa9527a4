"""Starts the native server of an installed wheel, pulls a row, and prints which gRPC it has loaded.

    python tools/bundled_grpc.py ENVIRONMENT

Fails if the process has loaded a library of gRPC from outside the environment whose Python runs it.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import sparring_packed
from sparring import ScanChunk, SnapshotWriter, TableDescription
from sparring.contracts import TableConfig
from sparring_serve import LookupClient

with tempfile.TemporaryDirectory() as folder:
    writer = SnapshotWriter(f"{folder}/run", step=1)
    chunk = ScanChunk(np.arange(3), np.ones((3, 4), np.float32), np.zeros(3, np.uint64))
    writer.write_table(TableDescription.of(TableConfig("item", 4)), [chunk])
    writer.finish()
    writer.commit()
    sparring_packed.write(f"{folder}/run", f"{folder}/served/step-1")
    config = Path(folder) / "serving.yaml"
    config.write_text(
        f"snapshots: {folder}/served\nserver: {{address: '127.0.0.1:0', front_end: native}}\n"
    )
    command = [f"{sys.argv[1]}/bin/sparring", "serve", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as serving:
        assert serving.stderr is not None
        said = ""
        while (ready := re.search(r"ready on (\S+): ", said)) is None:
            line = serving.stderr.readline()
            if not line:
                sys.exit(f"the server did not start: {said}")
            said += line
        try:
            with LookupClient(ready[1]) as client:
                assert client.pull({"item": [1]}, deadline_seconds=9.0).found["item"].all()
            lines = Path(f"/proc/{serving.pid}/maps").read_text().splitlines()
        finally:
            serving.terminate()
loaded = {words[5] for line in lines if len(words := line.split(maxsplit=5)) == 6}
grpc = {each for each in loaded if re.search(r"/(libgrpc|libgpr|libabsl|libssl|libcrypto)", each)}
foreign = sorted(each for each in grpc if not each.startswith(sys.argv[1]))
if foreign or not grpc:
    sys.exit(f"the wheel must contain gRPC's libraries; loaded: {foreign or 'none'}")
print("gRPC is part of the wheel:", *sorted(each for each in grpc if "libgrpc" in each))
