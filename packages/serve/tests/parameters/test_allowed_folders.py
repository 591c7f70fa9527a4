"""Saves and loads open nothing that is outside of `parameters.folders`."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring import list_snapshots
from sparring_serve.parameters.allowed_folders import snapshot_url
from sparring_serve.status import Status, StatusError
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import PartRequest, SnapshotRequest

from .conftest import MakeShards, made_gradients


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


FOREIGN = [
    *(
        f"{scheme}://127.0.0.1:PORT/x"
        for scheme in (
            "http", "HTTP", "https", "ftp", "FTP", "sftp", "smb", "webhdfs", "jlab", "s3", "git",
            "memory", "data", "libarchive",
        )
    ),
    "http:127.0.0.1:PORT/x",
    "zip://x::http://127.0.0.1:PORT/a.zip",
    "zip://x::FOLDER/a.zip",
    "simplecache::http://127.0.0.1:PORT/x",
    "filecache::ftp://127.0.0.1:PORT/x",
    "blockcache::http://127.0.0.1:PORT/x",
    "reference://x::http://127.0.0.1:PORT/refs.json",
    "reference://?fo=http://127.0.0.1:PORT/refs.json",
    "FOLDER/x::http://127.0.0.1:PORT/x",
    "FOLDER::http://127.0.0.1:PORT/x",
    "x::http:",
    "FOLDER/../x",
    "FOLDER/..",
    "FOLDER/a/..",
    "FOLDER/a/../../x",
    "FOLDER/%2e%2e",
    "FOLDER/..%2fx",
    "FOLDER/%2e%2e/x",
    "FOLDER/deeper/x",
    "FOLDER-other/x",
    "file://localhost/FOLDER/x",
    "file:/FOLDER/x",
    "FILE://FOLDER/x",
    "File://FOLDER/x",
    "local://FOLDER/x",
    "~/x",
    "/x",
    ".",
    "..",
    "/",
    ".hidden",
    "a\0b",
    "a\nb",
    "a\\b",
    "a%2fb",
    "a?b",
    "a#b",
    "a*b",
    "a:b",
]  # fmt: skip


@pytest.mark.parametrize("url", FOREIGN)
def test_foreign_urls_are_rejected_and_nothing_is_opened(
    make_shards: MakeShards, tmp_path: Path, listening: socket.socket, url: str
) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    shards = make_shards(1, folders=[str(folder)])
    given_url = url.replace("PORT", str(listening.getsockname()[1])).replace("FOLDER", str(folder))
    [service] = shards.services.values()
    for method in ("Save", "Load", "SavePart", "LoadPart"):
        _, answer = service.methods()[method]
        whole = method in ("Save", "Load")
        request: Any = SnapshotRequest(given_url) if whole else (
            PartRequest(given_url, shard=0, num_shards=1, token="a" * 32, step=1)
        )  # fmt: skip
        with pytest.raises(StatusError) as caught:
            answer(encode(request), 5)
        assert caught.value.status == Status.INVALID_ARGUMENT
        assert caught.value.reason == "url"
        assert repr(given_url)[1:20] in str(caught.value)
    assert not select.select([listening], [], [], 0.05)[0], "a connection was opened"
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "url",
    ["a", "FOLDER/a", "FOLDER//a", "FOLDER/a/", "FOLDER/./a", "FOLDER/b/../a", "file://FOLDER/a",
     "LINK/a"],
)  # fmt: skip
def test_the_same_snapshot_may_be_named_in_several_ways(
    make_shards: MakeShards, tmp_path: Path, url: str
) -> None:
    folder, link = tmp_path / "saved", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    # Folders that are links are known by their real paths, too: lists of snapshots have those.
    configured = [str(link)] if "LINK" not in url else [str(folder), str(link)]
    shards = make_shards(1, folders=configured)
    with shards.client() as client:
        client.push(made_gradients(0), wait="applied")
        client.save(url.replace("FOLDER", str(folder)).replace("LINK", str(link)))
        [saved] = list_snapshots(folder)
        assert saved == str(folder / "a")
        client.load(saved)


def test_relative_folders_and_urls_that_are_configured_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = ("saved", "s3://bucket/saved/", "zip://saved::http://127.0.0.1/a.zip")
    assert snapshot_url("a", folders) == "saved/a"
    assert snapshot_url(f"{tmp_path}/saved/a", folders) == "saved/a"
    assert snapshot_url("s3://bucket/saved/a", folders) == "s3://bucket/saved/a"
    assert snapshot_url(f"{folders[2]}/a", folders) == f"{folders[2]}/a"
    for url in ("S3://bucket/saved/a", "s3://bucket/saved/../a", "s3://bucket/other/a"):
        with pytest.raises(StatusError, match=r"outside the folders .*parameters\.folders"):
            snapshot_url(url, folders)


PARTS = st.lists(
    st.sampled_from(
        [
            "/",
            "..",
            ".",
            "a",
            "saved",
            "s3://bucket",
            "file://",
            "::",
            "http://h",
            "%2e",
            "\\",
            " ",
            "é",
        ]
    )
    | st.text(max_size=3),
    max_size=8,
).map("".join)


@given(PARTS)
def test_any_url_is_rejected_or_directly_in_a_folder(url: str) -> None:
    folders = ("/data/saved", "s3://bucket/saved")
    try:
        found = snapshot_url(url, folders)
    except StatusError:
        return
    folder, _, name = found.rpartition("/")
    assert folder in folders
    assert name not in ("", ".", "..")
    assert not set(name) & set("/\\:%?#*\0\n")
