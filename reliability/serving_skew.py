"""Ten million ids: the reader, servers and exported programs get the same bits, and skew is found.

Examples are written as Parquet, with a string, an integer, a list of about a hundred strings and numbers.
Their ids and numbers pass through the reader of the training, both servers over gRPC with `server.log`,
the exported C++ program of PyTorch, and the exported program of Keras. No bit of an id, a number or a
row may differ. Then 0.01 % of one column is changed, and `sparring skew` must name this column within a
minute.

A program returns the rows of its ids. No id has a row, so each row is an initial value, which is a hash
of the id.
"""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc
from pyarrow import parquet

import sparring_packed
from reliability.report import Report
from reliability.small_snapshots import scratch_folder
from sparring import SnapshotWriter, TableDescription
from sparring.contracts import ScanChunk, TableConfig
from sparring_serve import ClientConfig, LookupClient, Sample
from sparring_serve.server import native_front_end
from sparring_train.config.sections.table import TableData
from sparring_train.data.table.dataset import read_table
from sparring_train.skew.compare import SkewReport, compare_files

__all__ = ["TRIALS", "run"]

TRIALS = 10_000_000

DIM, IDS_OF_EXAMPLE, SKEW = 4, 100, 1e-4
MAX_SECONDS = 60.0
_CHUNK = 50
"""Number of examples of a pull, whose request fits into the buffer of a socket."""
_ROWS_OF_FILE = 20_000
_ROOT = Path(__file__).resolve().parents[1]
_SKEWED = "user"


def run(trials: int) -> Report:
    """Compares `trials` ids in all places."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    num_examples = max(trials // IDS_OF_EXAMPLE, _CHUNK)
    with scratch_folder() as folder:
        trained = _write_examples(folder, num_examples)
        _publish(folder)
        read = _read(trained, folder / "read.arrows")
        _check(compare_files(read, trained), "reader", counts, failures)
        kinds = ["python"]
        if native_front_end.EXECUTABLE.exists():
            kinds.append("native")
        for kind in kinds:
            _check_server(kind, folder, read, counts, failures)
        for framework, check in (("torch", _torch_rows), ("tensorflow", _keras_rows)):
            if importlib.util.find_spec(framework) is None:
                counts[f"{framework} is not installed"] += 1
                continue
            _check_program(framework, check, folder, read, counts, failures)
        _check_seeded_skew(folder, read, counts, failures)
    return Report(trials, counts, failures)


def _write_examples(folder: Path, count: int) -> str:
    path = folder / "train"
    path.mkdir()
    random = np.random.default_rng(1)
    for begin in range(0, count, _ROWS_OF_FILE):
        rows = min(_ROWS_OF_FILE, count - begin)
        lengths = random.integers(IDS_OF_EXAMPLE - 8, IDS_OF_EXAMPLE + 5, rows)
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        # The two other columns have one id each.
        seen = _strings("item ", random.integers(0, 1 << 60, int(offsets[-1])))
        table = {
            "example": np.arange(begin, begin + rows),
            "user": _strings("ü", random.integers(0, 1 << 40, rows)),
            "place": random.integers(-(1 << 63), (1 << 63) - 1, rows),
            "seen": pyarrow.ListArray.from_arrays(offsets, seen),
            "price": random.standard_normal(rows) * 1e3,
            "age": np.where(random.random(rows) < 0.1, np.nan, random.integers(0, 99, rows)),
        }
        parquet.write_table(pyarrow.table(table), path / f"{begin:09}.parquet")
    return str(path)


def _strings(start: str, numbers: Any) -> Any:
    return pc.binary_join_element_wise(start, pyarrow.array(numbers).cast(pyarrow.string()), "")


def _publish(folder: Path) -> None:
    writer = SnapshotWriter(str(folder / "saved"), step=1)
    chunk = ScanChunk(np.array([1]), np.ones((1, DIM), np.float32), np.zeros(1, np.uint64))
    writer.write_table(TableDescription.of(TableConfig("item", DIM, seed=3)), [chunk])
    writer.finish()
    writer.commit()
    sparring_packed.write(str(folder / "saved"), str(folder / "served/1"))


def _read(trained: str, path: Path) -> str:
    """Writes what the reader of the training returns, and returns the path."""
    section = TableData(
        kind="table",
        path=trained,
        categorical=("example", "user", "place", "seen"),
        lists=("seen",),
        numeric=("price", "age"),
    )
    writer = None
    with pyarrow.OSFile(str(path), "wb") as sink:
        for batch in read_table(section, trained):
            columns: dict[str, Any] = {}
            for name, column in batch.ids.items():
                columns[name] = pyarrow.array(column.ids)
                if column.lengths is not None:
                    offsets = np.concatenate(([0], np.cumsum(column.lengths))).astype(np.int32)
                    columns[name] = pyarrow.ListArray.from_arrays(offsets, columns[name])
            for at, name in enumerate(section.numeric):
                columns[name] = pyarrow.array(np.ascontiguousarray(batch.numbers[:, at]))
            table = pyarrow.table(columns)
            if writer is None:
                writer = pyarrow.ipc.new_stream(sink, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()
    return str(path)


def _batches(path: str, size: int) -> Iterator[Any]:
    table = pyarrow.ipc.open_stream(pyarrow.memory_map(path)).read_all()
    for begin in range(0, len(table), size):
        yield table.slice(begin, size).combine_chunks()


def _check(found: SkewReport, what: str, counts: Counter[str], failures: list[str]) -> None:
    for each in found.columns:
        counts[f"{what}: values compared"] += each.num_compared
        counts[f"{what}: values that differ"] += each.num_differing
        if each.num_differing:
            failures.append(f"{what}: {each}")


def _count_rows(
    what: str, ids: Any, rows: Any, tables: Any, counts: Counter[str], failures: list[str]
) -> None:
    wanted = tables.lookup("item", ids).view(np.uint32)
    bits = np.bitwise_count if hasattr(np, "bitwise_count") else lambda each: each != 0
    differing = int(bits(wanted ^ np.ascontiguousarray(rows).view(np.uint32)).sum())
    counts[f"{what}: ids looked up"] += len(ids)
    counts[f"{what}: bits of rows that differ"] += differing
    if differing:
        failures.append(f"{what}: {differing:,} bits of rows differ")


# -- servers ------------------------------------------------------------------------------------


def _check_server(
    kind: str, folder: Path, read: str, counts: Counter[str], failures: list[str]
) -> None:
    log = folder / f"log-{kind}"
    config = folder / f"{kind}.yaml"
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        metrics_port = reserved.getsockname()[1]
    config.write_text(
        f"snapshots: {folder / 'served'}\n"
        f"server: {{front_end: {kind}, address: '127.0.0.1:0', metrics_port: {metrics_port},\n"
        f"  log: {{path: {log}, fraction: 1.0, max_bytes: 16 GiB}}}}\n"
    )
    num_examples = 0
    with (
        sparring_packed.open(str(folder / "served")) as tables,
        _serve(config, metrics_port) as (address, read_dropped),
        LookupClient(address, ClientConfig(deadline_seconds=10)) as client,
    ):
        num_dropped = read_dropped()
        for batch in _batches(read, _CHUNK):
            seen = batch["seen"].chunk(0) if batch["seen"].num_chunks else batch["seen"]
            ids = seen.flatten().to_numpy()
            columns = {
                name: batch[name].to_pylist() if name == "seen" else batch[name].to_numpy()
                for name in batch.column_names
            }
            sample = Sample(columns, str(num_examples))
            rows = client.pull({"item": ids}, sample=sample).rows["item"]
            _count_rows(f"{kind} server", ids, rows, tables, counts, failures)
            # The log drops entries rather than waiting. This trial sends them again.
            while (dropped := read_dropped()) > num_dropped:
                counts[f"{kind} server: entries dropped and sent again"] += 1
                num_dropped = dropped
                time.sleep(0.05)
                client.pull({"item": ids[:1]}, sample=sample)
            num_examples += len(batch)
    _wait_for_rows(log, num_examples)
    found = compare_files(str(log), read, keys=["example"])
    if found.num_joined < num_examples:
        failures.append(
            f"{kind} server: {found.num_joined:,} of {num_examples:,} examples are logged"
        )
    _check(found, f"{kind} server", counts, failures)


@contextmanager
def _serve(config: Path, metrics_port: int) -> Iterator[tuple[str, Callable[[], float]]]:
    """Starts a server; yields its address and a function that returns the number of dropped entries."""
    command = [sys.executable, "-m", "sparring", "serve", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                if match := re.search(r"ready on (\S+):", line):
                    break
            else:
                raise AssertionError(f"the server did not start: {''.join(lines)}")
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

            def read_dropped() -> float:
                with opener.open(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30) as page:
                    text = page.read().decode()
                match = re.search(r'logged_total\{result="dropped"\} (\S+)', text)
                return float(match[1]) if match else 0.0

            yield match[1], read_dropped
        finally:
            process.terminate()


def _wait_for_rows(log: Path, count: int) -> None:
    """Waits until the writer has ended, which is not a child of this process."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        files = [pyarrow.ipc.open_stream(each) for each in log.glob("*.arrows")]
        if sum(len(each.read_all()) for each in files) >= count:
            return
        time.sleep(0.5)


# -- programs -----------------------------------------------------------------------------------

Lookup = Callable[[Any, Any], tuple[Any, Any]]
"""Takes ids and numbers; returns rows and numbers."""


def _check_program(
    framework: str,
    opened: Callable[[Path], Any],
    folder: Path,
    read: str,
    counts: Counter[str],
    failures: list[str],
) -> None:
    with (
        sparring_packed.open(str(folder / "served")) as tables,
        opened(folder) as look_up,
    ):
        for batch in _batches(read, 5_000):
            seen = pyarrow.concat_arrays(batch["seen"].chunks).flatten().to_numpy()
            ids = np.concatenate((seen, batch["user"].to_numpy(), batch["place"].to_numpy()))
            numbers = np.concatenate((batch["price"].to_numpy(), batch["age"].to_numpy()))
            rows, returned = look_up(ids, numbers)
            _count_rows(f"{framework} program", ids, rows, tables, counts, failures)
            different = int((returned.view(np.uint32) != numbers.view(np.uint32)).sum())
            counts[f"{framework} program: numbers compared"] += len(numbers)
            if different:
                failures.append(f"{framework} program: {different:,} numbers differ")


@contextmanager
def _torch_rows(folder: Path) -> Iterator[Lookup]:
    """Runs `examples/run_program.cc` of sparring-torch."""
    import torch

    from sparring_torch import Embedding, export_program

    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.item = Embedding(DIM, name="item", storage="memory")

        def forward(self, ids: Any, numbers: Any) -> Any:
            return self.item(ids), numbers.clone()

    bundle, program = folder / "torch", folder / "run_program"
    # Other sizes than 1, and than each other, so that both are dynamic.
    inputs = (torch.arange(6), torch.zeros(5))
    auto = torch.export.Dim.AUTO
    shapes = ({0: auto}, {0: auto})
    export_program(Rows(), inputs, bundle, served=folder / "served/1", dynamic_shapes=shapes)
    of_torch = Path(torch.__file__).parent
    includes = [bundle / "include", of_torch / "include"]
    includes.append(of_torch / "include/torch/csrc/api/include")
    libraries = (bundle / "lib", of_torch / "lib")
    source = _ROOT / "packages/framework-torch/examples/run_program.cc"
    subprocess.run(
        ["c++", "-std=c++20", "-O1", str(source), "-o", str(program),
         *(f"-I{each}" for each in includes), *(f"-L{each}" for each in libraries),
         "-Wl,--no-as-needed", "-lsparring_program", "-lsparring_packed",
         "-ltorch", "-ltorch_cpu", "-lc10",
         *(f"-Wl,-rpath,{each}" for each in libraries)],
        check=True,
    )  # fmt: skip
    with _command(program, bundle, folder / "served/1") as ask:

        def look_up(ids: Any, numbers: Any) -> tuple[Any, Any]:
            torch.save([torch.from_numpy(ids), torch.from_numpy(numbers)], folder / "in.pt")
            ask(f"run {folder / 'in.pt'} {folder / 'out.pt'}")
            rows, returned = torch.load(folder / "out.pt")
            return rows.numpy(), returned.numpy()

        yield look_up


@contextmanager
def _keras_rows(folder: Path) -> Iterator[Lookup]:
    """Runs `examples/run_saved_model.cc` of sparring-tf."""
    import keras
    import tensorflow as tf

    from sparring_tf import Embedding, export_program

    ids_input = keras.Input((), dtype="int64", name="ids")
    numbers_input = keras.Input((), dtype="float32", name="numbers")
    rows = Embedding(DIM, name="item", storage="memory")(ids_input)
    same = keras.layers.Activation("linear")(numbers_input)
    model = keras.Model([ids_input, numbers_input], {"rows": rows, "same": same})
    bundle, program = folder / "keras", folder / "run_saved_model"
    export_program(model, bundle, served=folder / "served/1")
    libraries = (bundle / "lib", Path(tf.sysconfig.get_lib()))
    source = _ROOT / "packages/framework-tf/examples/run_saved_model.cc"
    subprocess.run(
        ["c++", "-std=c++20", "-O1", str(source), "-o", str(program), f"-I{bundle / 'include'}",
         f"-I{tf.sysconfig.get_include()}", *(f"-L{each}" for each in libraries),
         "-lsparring_packed", "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2",
         *(f"-Wl,-rpath,{each}" for each in libraries)],
        check=True,
    )  # fmt: skip
    tensors = folder / "tensors"
    tensors.mkdir()
    with _command(program, bundle, folder / "served/1") as ask:

        def look_up(ids: Any, numbers: Any) -> tuple[Any, Any]:
            for name, each in (("ids", ids), ("numbers", numbers)):
                (tensors / f"{name}.shape").write_text(str(len(each)))
                (tensors / f"{name}.bin").write_bytes(each.tobytes())
            ask(f"run {tensors}")
            found = np.fromfile(tensors / "rows.bin", np.float32).reshape(-1, DIM)
            return found, np.fromfile(tensors / "same.bin", np.float32)

        yield look_up


@contextmanager
def _command(program: Path, *arguments: Path) -> Iterator[Callable[[str], None]]:
    """Runs a program; yields a function that sends a command and waits for its answer."""
    with subprocess.Popen(
        [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        questions, answers = process.stdin, process.stdout
        assert questions is not None
        assert answers is not None

        def ask(line: str) -> None:
            questions.write(f"{line}\n")
            questions.flush()
            answer = answers.readline()
            if answer != "ran\n":
                raise AssertionError(f"{program.name}: answered {answer!r} to {line!r}")

        yield ask
        questions.close()


# -- a difference ---------------------------------------------------------------------------------


def _check_seeded_skew(folder: Path, read: str, counts: Counter[str], failures: list[str]) -> None:
    """Changes some values of one column, in the lowest bit, and searches for them."""
    random = np.random.default_rng(2)
    changed = folder / "changed.arrows"
    num_changed = 0
    with pyarrow.OSFile(str(changed), "wb") as sink:
        writer = None
        for batch in _batches(read, _ROWS_OF_FILE):
            ids = batch[_SKEWED].to_numpy().copy()
            places = random.choice(len(ids), max(1, round(SKEW * len(ids))), replace=False)
            ids[places] ^= 1
            num_changed += len(places)
            at = batch.column_names.index(_SKEWED)
            table = batch.set_column(at, _SKEWED, pyarrow.array(ids))
            writer = writer or pyarrow.ipc.new_stream(sink, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()
    begin = time.monotonic()
    found = compare_files(str(changed), str(folder / "train"), keys=["example"])
    seconds = time.monotonic() - begin
    named = {each.name: each.num_differing for each in found.columns if each.num_differing}
    counts["seeded skew: values changed"] = num_changed
    counts["seeded skew: values found"] = named.get(_SKEWED, 0)
    counts["seeded skew: milliseconds"] = round(1e3 * seconds)
    if named != {_SKEWED: num_changed}:
        failures.append(f"seeded skew: changed {num_changed} values of {_SKEWED}, found {named}")
    if seconds > MAX_SECONDS:
        failures.append(f"seeded skew: found after {seconds:.0f} s, expected {MAX_SECONDS:.0f} s")
