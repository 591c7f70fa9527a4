"""`sparring erase` finds ids in files that it does not change, in any encoding."""

from __future__ import annotations

import bz2
import gzip
import html
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from sparring import hash_strings
from sparring_cli.application import main
from sparring_train.cli.erase_search import SearchedFile, SearchedIds, search_files

EMAIL = "søren+ads&co@example.org"
KEY = int(hash_strings([EMAIL])[0])
OTHER = "soren@example.org"
WANTED = SearchedIds({EMAIL: [KEY], "ann": [int(hash_strings(["ann"])[0])]})


def parquet_of(compression: str, **columns: object) -> bytes:
    file = io.BytesIO()
    table = pyarrow.table(columns)
    parquet.write_table(table, file, compression=compression)
    return file.getvalue()


def zip_of(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.bin", content)
    return file.getvalue()


def zstd_of(content: bytes) -> bytes:
    return bytes(pyarrow.compress(content, codec="zstd", asbytes=True))


def npz_of(keys: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, keys=keys)
    return file.getvalue()


TEXT = f"7,{EMAIL},film 3\n".encode() * 3
PADDED = b"." * ((1 << 20) - 9) + TEXT  # over the border of two chunks
LISTS = pyarrow.array([[OTHER], None, [EMAIL, OTHER]])
KEYS = np.array([3, KEY, -1], np.int64)

CONTENTS: dict[str, bytes] = {
    "text": TEXT,
    "text over two chunks": PADDED,
    "JSON": json.dumps({"user": EMAIL}).encode(),
    "HTML": f"<td>{html.escape(EMAIL)}</td>".encode(),
    "URL": f"https://example.org/?user={quote(EMAIL)}".encode(),
    "gzip": gzip.compress(PADDED),
    "bzip2": bz2.compress(TEXT),
    "xz": lzma.compress(TEXT),
    "zstd": zstd_of(PADDED),
    "zip": zip_of(TEXT),
    "gzip in zip": zip_of(gzip.compress(TEXT)),
    "parquet in zip": zip_of(parquet_of("gzip", who=[EMAIL])),
    "parquet": parquet_of("zstd", who=[OTHER, EMAIL]),
    "parquet, bytes": parquet_of("gzip", who=pyarrow.array([EMAIL.encode()])),
    "parquet, dictionary": parquet_of(
        "zstd", who=pyarrow.array([EMAIL, None] * 9).dictionary_encode()
    ),
    "parquet, lists": parquet_of("zstd", who=LISTS),
    "parquet, structs": parquet_of("zstd", who=pyarrow.array([{"a": {"b": EMAIL}}])),
    "parquet, keys": parquet_of("gzip", id=KEYS),
    "keys": KEYS.tobytes(),
    "keys, big-endian": KEYS.astype(">i8").tobytes(),
    "keys in digits": f'{{"key": {KEY}}}'.encode(),
    "unsigned keys in digits": f"{KEY % 2**64}".encode(),
    "npz": npz_of(KEYS),
    "short text": b"dear ann, ...",
}


def searched(folder: Path) -> list[SearchedFile]:
    return list(search_files([str(folder)], WANTED))


@pytest.mark.parametrize("name", CONTENTS)
def test_an_id_is_found_in_a_file_of_any_encoding(name: str, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    path = tmp_path / "a/b/file"
    path.write_bytes(CONTENTS[name])
    assert searched(tmp_path) == [SearchedFile(str(path), 1)]


@pytest.mark.parametrize(
    "content",
    [
        f"{OTHER} joann banner anna {KEY}0 1{KEY}".encode(),
        parquet_of("gzip", who=[OTHER, "joann"], id=[1, KEY + 1]),
        gzip.compress(b"nothing"),
        b"",
    ],
    ids=["text", "parquet", "gzip", "empty"],
)
def test_ids_of_others_are_not_found(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    assert [each.num_ids for each in searched(tmp_path)] == [0]


@pytest.mark.parametrize(
    "damaged",
    [gzip.compress(TEXT)[:-20], parquet_of("zstd", a=[EMAIL] * 9)[:-9], zip_of(TEXT)[:40]],
    # Without names, the ids of the tests would contain the time in the archive.
    ids=["gzip", "parquet", "zip"],
)
def test_undecodable_files_are_reported(damaged: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(damaged)
    (found,) = searched(tmp_path)
    assert found.problem


def test_numbers_are_found_if_they_are_long_enough_to_mean_one_id(tmp_path: Path) -> None:
    long, short = 4_915_123_456_789, 7
    wanted = SearchedIds({str(long): [long, 1 << 62], str(short): [short, 1 << 61]})
    (tmp_path / "log").write_text(f"user {long}, item {short}")
    (tmp_path / "ids").write_bytes(np.array([long, short], np.int64).tobytes())
    assert [each.num_ids for each in search_files([str(tmp_path)], wanted)] == [1, 1]


# -- the command --------------------------------------------------------------------------

CONFIG = """
seed: 3
data: {kind: table, path: clicks.csv, label: clicked, categorical: [who, sender], dictionary: true,
       batch_size: 16}
model: {kind: dlrm, embedding_dim: 3, top_mlp: [4]}
storage: {backend: memory}
snapshots: {url: runs}
metrics: {path: "metrics-{rank}.jsonl"}
"""

Erased = tuple[int, str, str, dict[str, object]]
Erase = Callable[..., Erased]


@pytest.fixture
def erase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Erase:
    """A run on e-mail addresses, and its erasure by lines of a file."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{at % 2},p{at % 5}@example.org,{EMAIL}\n0,{EMAIL},x" for at in range(40)]
    Path("clicks.csv").write_text("\n".join(["clicked,who,sender", *lines]), encoding="utf-8")
    Path("run.yaml").write_text(CONFIG)
    assert main(["train", "run.yaml"]) == 0
    capsys.readouterr()

    def run(
        *lines: str, table: str = "who", options: tuple[str, ...]
    ) -> tuple[int, str, str, dict[str, object]]:
        Path("ids.txt").write_text("\n".join(lines), encoding="utf-8")
        Path("receipt.json").unlink(missing_ok=True)
        command = [
            "erase",
            table,
            "--keys",
            "ids.txt",
            "--yes",
            "--output",
            "receipt.json",
            *options,
        ]
        code = main(command)
        out, said = capsys.readouterr()
        return code, out, said, json.loads(Path("receipt.json").read_text(encoding="utf-8"))

    return run


@pytest.mark.parametrize("options", [("--everywhere", "run.yaml"), ("--snapshots", "runs")])
def test_files_of_a_run_and_named_places_are_searched(
    erase: Erase, options: tuple[str, ...]
) -> None:
    for place in ("runs/reports", "served"):
        Path(place).mkdir()
    Path("runs/reports/predictions.csv.gz").write_bytes(gzip.compress(TEXT))
    Path("served/rows.packed").write_bytes(KEYS.tobytes())
    Path("train.log").write_text("nobody")
    found = erase(EMAIL, options=(*options, "--search", "served", "--search", "train.log"))
    code, out, _, receipt = found
    assert code == 0
    files = {each["path"]: each["num_ids"] for each in receipt["files"]}  # type: ignore[attr-defined]
    remaining = {Path(path).name for path, count in files.items() if count}
    # The dictionary of another column contains the address, too: erase it from that table.
    (other,) = [Path(each).name for each in files if "/strings/sender/" in each]
    assert remaining == {"predictions.csv.gz", "rows.packed", other}
    assert "train.log" in {Path(each).name for each in files}
    # A snapshot does not contain the path of the metrics of its run.
    names = {Path(each).name for each in files}
    assert ("metrics-0.jsonl" in names) == (options[0] == "--everywhere")
    unknown = [each["place"] for each in receipt["remains"]]  # type: ignore[attr-defined]
    assert ("report, metrics and traces of the run" in unknown) == (options[0] == "--snapshots")
    assert "runs/reports/predictions.csv.gz: still contains 1 of the ids; delete it" in out
    assert EMAIL not in out
    code, out, _, receipt = erase(EMAIL, table="sender", options=options)
    assert code == 0
    assert other not in out
    assert b"example.org" not in b"".join(
        each.read_bytes() for each in Path("runs/strings/sender").glob("*")
    )


def test_lines_for_which_nothing_was_found_are_named_by_number(erase: Erase) -> None:
    lines = ("# two people", "P1@Example.org", EMAIL, "nobody@example.org")
    code, _, said, receipt = erase(*lines, options=("--everywhere", "run.yaml"))
    assert code == 0
    assert receipt["lines_without_a_row"] == [2, 4]
    assert "ids.txt: found no row and no string for 2 of 3 lines (2, 4); compare" in " ".join(
        said.split()
    )
    assert "P1@" not in said


def test_ids_in_the_log_of_requests_are_found(tmp_path: Path) -> None:
    """The log of `server.log` contains keys in binary form, in lists and alone."""
    [ann, ben, eve] = hash_strings(["ann", "ben", "eve"]).tolist()
    table = pyarrow.table({"user": [ann, 5], "seen": [[], [7, ben]]})
    with pyarrow.ipc.new_stream(str(tmp_path / "log.arrows"), table.schema) as writer:
        writer.write_table(table)
    wanted = SearchedIds({"ann": [ann], "ben": [ben], "eve": [eve]})
    [found] = search_files([str(tmp_path)], wanted)
    assert (found.num_ids, found.problem) == (2, "")
