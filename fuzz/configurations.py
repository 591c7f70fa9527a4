"""Fuzzes YAML configurations: each must be read, or rejected with `ConfigError`.

The first byte selects the kind of file: a run of `sparring train`, a service, or a document of
`sparring plan`. A run that can be read must be equal after it is written and read again.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz import harness

ROOT = Path(__file__).parents[1]
# Without ruamel.yaml, because an input then takes four times as long.
_INSTRUMENTED = ("sparring_cli.documents", "sparring_train.config", "sparring_serve.config")


@contextmanager
def open_target() -> Iterator[harness.Target]:
    """Returns a target that writes each input to a file and reads it."""
    from sparring import make_plugin_manager
    from sparring.errors import ConfigError
    from sparring_plan.planning.inputs import read_inputs
    from sparring_serve.config import read_serving_config
    from sparring_train import config_as_yaml, load_config, parse_config

    manager = make_plugin_manager()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.yaml")

        def read(data: bytes) -> None:
            kind = data[0] % 4 if data else 0
            path.write_bytes(data[1:])
            if kind == 0:
                load_config(path)
            elif kind == 1:
                config = load_config(path, plugin_manager=manager)
                if parse_config(config_as_yaml(config), plugin_manager=manager) != config:
                    raise AssertionError("the configuration differs after it is written and read")
            elif kind == 2:
                read_serving_config(path)
            else:
                read_inputs(path)

        def target(data: bytes) -> None:
            try:
                read(data)
            except ConfigError as error:
                if not str(error):
                    raise AssertionError("the error has no message") from error

        yield target


def seeds() -> Iterator[bytes]:
    """Yields the configurations of this repository."""
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        for kind in range(3):
            yield bytes([kind]) + path.read_bytes()
    for path in sorted((ROOT / "configs/plans").glob("*.yaml")):
        yield b"\3" + path.read_bytes()
    yield b"\0a: &a [1, 2]\nb: *a\nc: !!str 7\nd: |\n  text\n? [x]\n: {<<: {e: .nan}}\n"


if __name__ == "__main__":
    sys.exit(harness.run(sys.argv[1:], _INSTRUMENTED, open_target))
