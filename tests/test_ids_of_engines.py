"""All engines compute the published ids of strings, which docs/reference/hash-of-strings.md lists."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest

from sparring import hash_strings
from sparring_testing.processes.compilers import compile_program
from sparring_train import hash_column, hash_polars, register_duckdb

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/hash-of-strings.md"


def read_vectors() -> dict[str, int]:
    rows = re.findall(r"^\| (.+?) \| `[0-9a-f]{16}` \| (-?\d+) \|$", PAGE.read_text(), re.M)
    found = {}
    for text, number in rows:
        if text == "(empty)":
            string = ""
        elif repeated := re.fullmatch(r"(\d+) times `(.)`", text):
            string = repeated[2] * int(repeated[1])
        else:
            string = re.findall(r"`(.+?)`", text)[0]
        found[string] = int(number)
    return found


VECTORS = read_vectors()
STRINGS, IDS = list(VECTORS), list(VECTORS.values())


def test_there_are_published_ids() -> None:
    assert len(STRINGS) == len(IDS) == 6


def test_python_computes_the_published_ids() -> None:
    assert hash_strings(STRINGS).tolist() == IDS


def test_arrow_computes_the_published_ids() -> None:
    assert hash_column(pyarrow.array(STRINGS).dictionary_encode()).to_pylist() == IDS


def test_the_header_without_dependencies_computes_the_published_ids(tmp_path: Path) -> None:
    (tmp_path / "ids.cc").write_text(
        """#include <sparring/hash_string.h>
        #include <iostream>
        #include <iterator>
        #include <string>
        int main() {
          const std::string all{std::istreambuf_iterator<char>(std::cin), {}};
          for (size_t begin = 0; begin < all.size();) {
            const size_t end = all.find('\\0', begin);
            std::cout << sparring::hash_string(all.data() + begin, end - begin) << std::endl;
            begin = end + 1;
          }
        }"""
    )
    include = f"-I{ROOT / 'packages/core/include'}"
    program = compile_program(tmp_path / "ids.cc", tmp_path / "ids", include)
    content = b"".join(each.encode() + b"\0" for each in STRINGS)
    ran = subprocess.run([program], input=content, capture_output=True, check=True)
    assert list(map(int, ran.stdout.split())) == IDS


def test_the_c_library_computes_the_published_ids() -> None:
    from sparring_packed.library import library

    function = library().sparring_hash_string
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_char_p, ctypes.c_size_t]
    assert [function(each.encode(), len(each.encode())) for each in STRINGS] == IDS


def test_polars_computes_the_published_ids() -> None:
    polars = pytest.importorskip("polars", reason="runs Polars; nox -s engines installs it")
    frame = polars.DataFrame({"item": STRINGS})
    frame = frame.lazy().select(hash_polars(polars.col("item"))).collect()
    assert frame.schema["item"] == polars.Int64
    assert frame["item"].to_list() == IDS


def test_duckdb_computes_the_published_ids() -> None:
    duckdb = pytest.importorskip("duckdb", reason="runs DuckDB; nox -s engines installs it")
    with duckdb.connect() as connection:
        register_duckdb(connection)
        connection.register("clicks", pyarrow.table({"item": STRINGS}))
        rows = connection.sql("select hash_strings(item) from clicks").fetchall()
    assert [row[0] for row in rows] == IDS


PROGRAMS = {
    "ray": """
import ray, pyarrow
from sparring_train import hash_column
ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR")
def hashed(table):
    return pyarrow.table({"item": hash_column(table["item"])})
found = ray.data.from_arrow(pyarrow.table({"item": strings}))
found = found.map_batches(hashed, batch_format="pyarrow").take_all()
ids = [row["item"] for row in found]
""",
    "pyspark": """
import os
import sparring_spark
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false") \\
    .config("spark.driver.host", "127.0.0.1").getOrCreate()
frame = spark.createDataFrame([(each,) for each in strings], "item string").coalesce(1)
ids = [row[0] for row in sparring_spark.hash_strings(frame, ["item"]).collect()]
""",
}
"""Programs that set `ids`. They run in separate processes, because engines leave threads and servers."""


@pytest.mark.parametrize("engine", PROGRAMS)
def test_an_engine_of_data_frames_computes_the_published_ids(engine: str) -> None:
    pytest.importorskip(engine, reason=f"runs {engine}; nox -s engines installs it")
    if engine == "pyspark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java: apt install openjdk-17-jre-headless")
    before = "import json, sys\nstrings = json.loads(sys.argv[1])\n"
    code = f"{before}{PROGRAMS[engine]}\nprint('ids', json.dumps(ids))"
    ran = subprocess.run(
        [sys.executable, "-c", code, json.dumps(STRINGS)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    [line] = [line for line in ran.stdout.splitlines() if line.startswith("ids ")]
    assert json.loads(line[4:]) == IDS


def test_null_and_lists_stay() -> None:
    """Polars, DuckDB, Ray and Spark share this function."""
    a = VECTORS["a"]
    # A null list may have values, which belong to no other list.
    hidden = pyarrow.ListArray.from_arrays(
        [0, 1, 2, 3], pyarrow.array(["a", "x", "a"]), mask=pyarrow.array([False, True, False])
    )
    for given, expected in (
        (pyarrow.array(["a", None]), [a, None]),
        (pyarrow.array(["a", None, "a"]).dictionary_encode().slice(1), [None, a]),
        (pyarrow.array([["x"], ["a", None], None, []]).slice(1), [[a, None], None, []]),
        (hidden, [[a], None, [a]]),
        (pyarrow.array([None, None]), [None, None]),
        (pyarrow.chunked_array([["a"], [], ["a"]]), [a, a]),
        (pyarrow.chunked_array([], pyarrow.string()), []),
    ):
        assert hash_column(given).to_pylist() == expected
    assert hash_column(pyarrow.chunked_array([], pyarrow.list_(pyarrow.string()))).type == (
        pyarrow.list_(pyarrow.int64())
    )
