"""A server warns if it maps files of a remote file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring_serve import ServerConfig, ServingConfig
from sparring_serve.cli import serve
from sparring_serve.tables import file_systems
from sparring_serve.tables.file_systems import find_remote_file_system

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /mnt/share rw - nfs4 10.0.0.9:/export rw
31 30 8:2 / /mnt/share/local rw - xfs /dev/sdb1 rw
32 22 0:41 / /mnt/my\040bucket rw - fuse.s3fs s3fs rw
33 22 0:42 / /hidden rw - nfs 10.0.0.9:/old rw
34 22 8:3 / /hidden rw - ext4 /dev/sdc1 rw
35 22 0:43 / /scratch rw - lustre 10.0.0.8@tcp:/scratch rw
a damaged line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/served", ""),
        ("/mnt/share/served", "nfs4"),
        ("/mnt/shared", ""),
        ("/mnt/share/local/served", ""),
        ("/mnt/my bucket/served", "fuse.s3fs"),
        ("/hidden/served", ""),
        ("/scratch/served", "lustre"),
    ],
)
def test_the_file_system_of_a_path_is_found(path: str, kind: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert find_remote_file_system(path, mounts) == kind
    assert find_remote_file_system(path, tmp_path / "missing") == ""


def test_a_server_warns_before_it_maps_remote_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        file_systems,
        "find_remote_file_system",
        lambda path: "nfs4" if "share" in str(path) else "",
    )
    serve.warn_of_remote_files(ServingConfig(snapshots=str(tmp_path / "local")))
    assert caplog.messages == []
    serve.warn_of_remote_files(ServingConfig(snapshots=str(tmp_path / "share")))
    cache = ServerConfig(cache=tmp_path / "share")
    serve.warn_of_remote_files(ServingConfig(snapshots="s3://bucket/share", server=cache))
    assert len(caplog.messages) == 2
    for each in caplog.messages:
        assert f"{tmp_path}/share is on a file system of type nfs4" in each
        assert "serve from a local disk" in each
