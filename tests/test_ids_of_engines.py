"""All engines compute the published ids of strings, which docs/reference/hash-of-strings.md lists."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow
import pytest

from sparring import hash_strings
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


def in_python(strings: Sequence[str], folder: Path) -> list[int | None]:
    return hash_strings(strings).tolist()


def in_arrow(strings: Sequence[str], folder: Path) -> list[int | None]:
    return hash_column(pyarrow.array(strings).dictionary_encode()).to_pylist()


def in_cpp(strings: Sequence[str], folder: Path) -> list[int | None]:
    """Compiles a program with the header that has no dependencies."""
    if shutil.which("c++") is None:
        pytest.skip("compiles a program: apt install g++")
    (folder / "ids.cc").write_text(
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
    include = ROOT / "packages/core/include"
    built = ["c++", "-std=c++17", f"-I{include}", "ids.cc", "-o", "ids"]
    subprocess.run(built, cwd=folder, check=True)
    content = b"".join(each.encode() + b"\0" for each in strings)
    ran = subprocess.run([folder / "ids"], input=content, capture_output=True, check=True)
    return list(map(int, ran.stdout.split()))


def in_c(strings: Sequence[str], folder: Path) -> list[int | None]:
    from sparring_packed.library import library

    function = library().sparring_hash_string
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_char_p, ctypes.c_size_t]
    return [function(each.encode(), len(each.encode())) for each in strings]


def in_polars(strings: Sequence[str], folder: Path) -> list[int | None]:
    polars = pytest.importorskip("polars", reason="runs Polars; nox -s engines installs it")
    frame = polars.DataFrame({"item": strings})
    frame = frame.lazy().select(hash_polars(polars.col("item"))).collect()
    assert frame.schema["item"] == polars.Int64
    return list(frame["item"].to_list())


def in_duckdb(strings: Sequence[str], folder: Path) -> list[int | None]:
    duckdb = pytest.importorskip("duckdb", reason="runs DuckDB; nox -s engines installs it")
    with duckdb.connect() as connection:
        register_duckdb(connection)
        connection.register("clicks", pyarrow.table({"item": strings}))
        return [
            row[0] for row in connection.sql("select hash_strings(item) from clicks").fetchall()
        ]


def in_ray(strings: Sequence[str], folder: Path) -> list[int | None]:
    pytest.importorskip("ray", reason="runs Ray; nox -s engines installs it")
    return run_in_process(
        """
        import ray, pyarrow
        from sparring_train import hash_column
        ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR")
        def hashed(table):
            return pyarrow.table({"item": hash_column(table["item"])})
        found = ray.data.from_arrow(pyarrow.table({"item": strings}))
        found = found.map_batches(hashed, batch_format="pyarrow").take_all()
        ids = [row["item"] for row in found]
        """,
        strings,
    )


def in_spark(strings: Sequence[str], folder: Path) -> list[int | None]:
    pytest.importorskip("pyspark", reason="runs Spark; nox -s engines installs it")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java: apt install openjdk-17-jre-headless")
    return run_in_process(
        """
        import os
        import sparring_spark
        os.environ["PYSPARK_PYTHON"] = sys.executable
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false") \\
            .config("spark.driver.host", "127.0.0.1").getOrCreate()
        frame = spark.createDataFrame([(each,) for each in strings], "item string").coalesce(1)
        ids = [row[0] for row in sparring_spark.hash_strings(frame, ["item"]).collect()]
        """,
        strings,
    )


def run_in_process(code: str, strings: Sequence[str]) -> list[int | None]:
    """Runs a program that sets `ids`, so that an engine leaves nothing in this process."""
    lines = [line[8:] for line in code.splitlines()]
    whole = "\n".join(["import json, sys", "strings = json.loads(sys.argv[1])", *lines])
    whole += "\nprint('ids', json.dumps(ids))"
    ran = subprocess.run(
        [sys.executable, "-c", whole, json.dumps(list(strings))],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    [line] = [line for line in ran.stdout.splitlines() if line.startswith("ids ")]
    found: list[int | None] = json.loads(line[4:])
    return found


ENGINES = (
    in_python, in_arrow, in_cpp, in_c, in_polars, in_duckdb, in_ray, in_spark
)  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES, ids=lambda each: each.__name__)
def test_the_published_ids_are_equal_in_every_engine(
    engine: Callable[[Sequence[str], Path], list[int | None]], tmp_path: Path
) -> None:
    assert len(VECTORS) == 6
    assert engine(list(VECTORS), tmp_path) == list(VECTORS.values())


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
