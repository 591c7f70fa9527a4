"""Errors of a configuration are reported once, all together, with their places.

The file is long because one table lists the messages of all errors.
"""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring import make_plugin_manager
from sparring.contracts import INITIALIZERS
from sparring.errors import ConfigError
from sparring.plugins.distributions import PluginSource
from sparring_cli import CONFIG_LIMITS, Problem
from sparring_train.config.reading.loader import load_config, parse_config

RATINGS = """\
data:
  kind: table
  path: ratings.csv
  label: rating
  categorical: [user, item]
  required: [user, item]
model:
  kind: matrix_factorization
"""


def errors_of(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, overrides, source="run.yaml")
    lines = str(caught.value).splitlines()
    problems = caught.value.problems
    assert isinstance(problems, tuple)
    assert all(isinstance(problem, Problem) for problem in problems)
    assert [str(problem) for problem in problems] == lines
    return lines


WRONG: dict[str, tuple[str, list[str]]] = {
    "unknown key": (
        RATINGS + "stroage: {}\n",
        ["run.yaml:9:1: unknown key 'stroage' (did you mean storage?)"],
    ),
    "an unknown format of metrics": (
        RATINGS + "metrics:\n  path: m.jsonl\n  every_seconds: 0\n  format: prometeus\n",
        [
            "run.yaml:11:18: metrics.every_seconds is wrong (found 0, expected a number above 0)",
            "run.yaml:12:11: metrics.format is wrong (found 'prometeus', expected 'jsonl' or "
            "'prometheus'; did you mean prometheus?)",
        ],
    ),
    "unknown key far from any other": (
        RATINGS + "report:\n  zzz: 1\n",
        ["run.yaml:10:3: unknown key 'zzz' in report (expected path, trace_path or columns)"],
    ),
    "unknown key of one kind": (
        RATINGS.replace("path:", "pth: 1\n  path:"),
        ["run.yaml:3:3: unknown key 'pth' in data (did you mean path?)"],
    ),
    "missing key": (
        RATINGS.replace("  path: ratings.csv\n", ""),
        ["run.yaml:1:1: data.path is missing"],
    ),
    "missing kind": (
        RATINGS.replace("  kind: table\n", ""),
        ["run.yaml:1:1: data.kind is missing"],
    ),
    "unknown kind": (
        RATINGS.replace("kind: table", "kind: tabel"),
        [
            "run.yaml:2:9: data.kind is wrong (found 'tabel', expected "
            "synthetic_criteo, table or stream; did you mean table?)"
        ],
    ),
    "wrong type": (
        RATINGS + "training: {epochs: 1.5, steps: '3'}\n",
        [
            "run.yaml:9:20: training.epochs is wrong (found 1.5, expected a whole number)",
            "run.yaml:9:32: training.steps is wrong (found '3', expected a whole number)",
        ],
    ),
    "true is no number": (
        RATINGS + "seed: true\n",
        ["run.yaml:9:7: seed is wrong (found true, expected a whole number)"],
    ),
    "out of range": (
        RATINGS + "threads: -1\ndeadline_seconds: 0\n",
        [
            "run.yaml:9:10: threads is wrong (found -1, expected a number of at least 0)",
            "run.yaml:10:19: deadline_seconds is wrong (found 0, expected a number above 0)",
        ],
    ),
    "not finite": (
        RATINGS + "deadline_seconds: .inf\n",
        ["run.yaml:9:19: deadline_seconds is wrong (found inf, expected a finite number)"],
    ),
    "wrong choice": (
        RATINGS + "training: {non_finite_gradients: rise}\n",
        [
            "run.yaml:9:34: training.non_finite_gradients is wrong (found 'rise', expected "
            "'raise' or 'skip'; did you mean raise?)"
        ],
    ),
    "no mapping": (
        RATINGS + "optimizer: adam\n",
        ["run.yaml:9:12: optimizer is wrong (found 'adam', expected a mapping)"],
    ),
    "no list": (
        "data: {kind: synthetic_criteo}\nmodel:\n  kind: dlrm\n  top_mlp: 3\n",
        ["run.yaml:4:12: model.top_mlp is wrong (found 3, expected a list)"],
    ),
    "item of a list": (
        "data: {kind: synthetic_criteo}\nmodel:\n  kind: dlrm\n  top_mlp:\n  - 3\n  - 0\n",
        ["run.yaml:6:5: model.top_mlp.1 is wrong (found 0, expected a number of at least 1)"],
    ),
    "initializer": (
        RATINGS + "tables:\n  initializer: {kind: uniform, low: 3}\n",
        [
            "run.yaml:10:16: tables.initializer: initializer uniform: low must be below high, "
            "found low=3.0 and high=0.05"
        ],
    ),
    "name of an initializer": (
        RATINGS + "tables:\n  overrides:\n    user: {initializer: zeroes}\n",
        [
            "run.yaml:11:25: tables.overrides.user.initializer is wrong (found 'zeroes', "
            f"expected {', '.join(INITIALIZERS)} or package.module:Class; did you mean zeros?)"
        ],
    ),
    "unknown key of an initializer": (
        RATINGS + "tables:\n  initializer:\n    kind: uniform\n    hihg: 3\n",
        ["run.yaml:12:5: unknown key 'hihg' in tables.initializer (did you mean high?)"],
    ),
    # Other kinds of models have the keys `dim` and `bottom_mlp`.
    "keys of another kind of model": (
        RATINGS.replace("matrix_factorization", '"mine:Model"') + "  bottom_mlp: [4]\n  dim: 8\n",
        [
            "run.yaml:9:3: unknown key 'bottom_mlp' in model (expected kind, embedding_dim, dims, "
            "trained_for, options, user, item or positive)",
            "run.yaml:10:3: unknown key 'dim' in model (did you mean dims?)",
        ],
    ),
    "unknown key of the exchange": (
        RATINGS + "exchange:\n  schedule: tree\n",
        [
            "run.yaml:10:3: unknown key 'schedule' in exchange (expected chunk_rows, "
            "chunks_in_flight, row_wire_dtype, gradient_wire_dtype or two_levels)"
        ],
    ),
    "dtype on the wire": (
        RATINGS + "exchange:\n  row_wire_dtype: int4\n",
        [
            "run.yaml:10:19: exchange.row_wire_dtype is wrong (found 'int4', expected 'exact', "
            "'float32', 'bfloat16', 'float16' or 'int8'; did you mean int8?)"
        ],
    ),
    "no limit of expiry": (
        RATINGS + "tables:\n  expire: {after_days: null}\n",
        [
            "run.yaml:10:11: tables.expire: expire: found neither limit; "
            "give after_steps or after_days, or both"
        ],
    ),
    "time that no clock can wait": (
        RATINGS + "snapshots: {deadline_seconds: 1.0e+12}\n",
        [
            "run.yaml:9:31: snapshots.deadline_seconds is wrong (found 1000000000000.0, expected a "
            "number of at most 9.22337e+09)"
        ],
    ),
    "admission without its number": (
        RATINGS + "tables:\n  admission: frequency\n",
        ["run.yaml:10:3: tables.admission.k is missing"],
    ),
    "name of an admission filter": (
        RATINGS + "tables:\n  overrides:\n    user:\n      admission: {kind: frequence, k: 2}\n",
        [
            "run.yaml:12:25: tables.overrides.user.admission.kind is wrong (found 'frequence', "
            "expected all, frequency, probability or bloom; did you mean frequency?)"
        ],
    ),
    "admission out of range": (
        RATINGS + "tables:\n  admission: {kind: probability, p: 1.5}\n",
        ["run.yaml:10:37: tables.admission.p is wrong (found 1.5, expected a number of at most 1)"],
    ),
    "two sizes of a filter": (
        RATINGS
        + "tables:\n  admission: {kind: bloom, k: 2, expected_keys: 9, memory_bytes: 999}\n",
        [
            "run.yaml:10:14: tables.admission: admission bloom: found both expected_keys=9 and "
            "memory_bytes=999; give only one of them, because it determines the other"
        ],
    ),
    "no such table": (
        RATINGS + "tables:\n  overrides:\n    users: {initializer: zeros}\n",
        [
            "run.yaml:11:5: tables.overrides.users: model matrix_factorization has no such table "
            "(expected user, item; did you mean user?)"
        ],
    ),
    "model that does not fit the data": (
        "data: {kind: synthetic_criteo}\nmodel:\n  kind: matrix_factorization\n",
        [
            "run.yaml:1:14: data.kind: model matrix_factorization cannot be trained on this data "
            "(found synthetic_criteo with labels of 0 and 1, expected labels that are numbers)"
        ],
    ),
    "key given twice": (
        RATINGS + "seed: 1\nseed: 2\n",
        ["run.yaml:10:1: YAML: duplicate key 'seed', first at run.yaml:9:1; remove one"],
    ),
    "number as a key": (
        RATINGS + "7: 1\n",
        ["run.yaml:9:1: YAML: a key must be text; put it in quotes (found 7)"],
    ),
    "list as a key": (
        RATINGS + "? [1]\n: 1\n",
        ["run.yaml:9:3: YAML: a key must be text; put it in quotes (found a mapping or list)"],
    ),
    "python tag": (
        RATINGS + "framework: !!python/object/apply:os.system ['false']\n",
        [
            "run.yaml:9:12: YAML: tags are not allowed; remove it (found "
            "!!python/object/apply:os.system)"
        ],
    ),
    "own tag": (
        RATINGS + "framework: !mine torch\n",
        ["run.yaml:9:12: YAML: tags are not allowed; remove it (found !mine)"],
    ),
    "tag that does not fit": (
        RATINGS + "seed: !!int x\n",
        ["run.yaml:9:7: YAML: this is not a value of type int (found 'x')"],
    ),
    "no YAML": (
        RATINGS + "training: [\n",
        [
            "run.yaml:10:1: YAML: while parsing a flow node expected the node content, but found "
            "'<stream end>'"
        ],
    ),
    "tab": (
        "data:\n\tkind: table\n",
        [
            "run.yaml:2:1: YAML: while scanning for the next token found character '\\t' that "
            "cannot start any token"
        ],
    ),
    "control character": (
        "data:\n  kind: \x07\n",
        ["run.yaml:2:9: YAML: the character U+0007 is not allowed; remove it"],
    ),
    "two documents": (
        RATINGS + "---\nseed: 1\n",
        ["run.yaml:9:1: YAML: expected a single document in the stream but found another document"],
    ),
    "a list at the top": (
        "- 1\n",
        ["run.yaml:1:1: the file must contain a mapping of keys to values (found a list)"],
    ),
    "nothing": ("", ["run.yaml:1:1: data is missing", "run.yaml:1:1: model is missing"]),
    "comments only": (
        "# later\n",
        ["run.yaml:1:1: data is missing", "run.yaml:1:1: model is missing"],
    ),
    "an alias in itself": (
        "data: &data {kind: *data}\n",
        ["run.yaml:1:1: YAML: nested more than 50 levels deep"],
    ),
    "nested without end": (
        "[" * 3_000,
        ["run.yaml:1:1: YAML: nested too deep"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_names_file_line_column_and_remedy(case: str) -> None:
    text, expected = WRONG[case]
    assert errors_of(text) == expected


def test_a_few_aliases_cannot_expand_to_billions_of_values() -> None:
    lines = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"]
    for i in range(1, 12):
        lines.append(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]")
    assert errors_of("\n".join(lines)) == [
        "run.yaml:1:1: YAML: more than 20,000 values, aliases counted each time"
    ]


def test_only_the_first_hundred_of_many_errors_are_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(RATINGS + "".join(f"x{i}: 1\n" for i in range(150)))
    lines = str(caught.value).splitlines()
    assert len(lines) == 101
    assert lines[-1] == "… and 50 more"


def test_several_errors_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = RATINGS + "sead: 1\ntraining:\n  epochs: 0\nseed: x\n"
    assert [line.split(": ")[0] for line in errors_of(text, "model.dimm=3")] == [
        "run.yaml:9:1",
        "run.yaml:11:11",
        "run.yaml:12:7",
        "override model.dimm=3",
    ]


OVERRIDES = {
    "seed": "override seed: an override has the form dotted.key=value",
    "=3": "override =3: an override has the form dotted.key=value",
    "a..b=3": "override a..b=3: an override has the form dotted.key=value",
    "training.epoch=3": "override training.epoch=3: unknown key 'epoch' in training (did you "
    "mean epochs?)",
    "trainig.epochs=3": "override trainig.epochs=3: unknown key 'trainig' (did you mean training?)",
    "seed=x": "override seed=x: seed is wrong (found 'x', expected a whole number)",
    "seed.x=1": "override seed.x=1: seed cannot have a key 'x'; override seed itself (found 5, "
    "expected a mapping or a list)",
    "data.path=[1": "override data.path=[1: YAML: while parsing a flow sequence expected ',' or "
    "']', but got '<stream end>'; quote the value if it is text",
    "data.path=@x": "override data.path=@x: YAML: while scanning for the next token found "
    "character '@' that cannot start any token; quote the value if it is text",
    "data.path=2020": "override data.path=2020: data.path is wrong (found 2020, expected text)",
    "storage.options.list.2=1": "override storage.options.list.2=1: storage.options.list has no "
    "item '2' (found 2 items, expected an index from 0 to 1)",
    "storage.options.list.x=1": "override storage.options.list.x=1: storage.options.list has no "
    "item 'x' (found 2 items, expected an index from 0 to 1)",
    "optimizer.sparse.lr=-1": "override optimizer.sparse.lr=-1: optimizer.sparse.lr is wrong "
    "(found -1, expected a number above 0)",
    "training.micro_batches=5000": "override training.micro_batches=5000: "
    "training.micro_batches: a batch cannot be split into more micro-batches than it has samples "
    "(found 5000, expected at most data.batch_size, 4096)",
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_an_error_of_an_override_names_the_override(override: str) -> None:
    text = RATINGS + "seed: 5\nstorage: {options: {list: [1, 2]}}\n"
    assert errors_of(text, override) == [OVERRIDES[override]]


def test_backends_and_their_options_are_checked_at_their_place() -> None:
    text = RATINGS + (
        "framework: torhc\n"
        "storage:\n"
        "  backend: memory\n"
        "  options:\n"
        "    capasity: 3\n"
        "    policy: fifo\n"
        "collective: {backend: locl}\n"
        "rendezvous: {options: {port: 1}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        parse_config(
            text, source="run.yaml", plugin_manager=make_plugin_manager(entry_points=False)
        )
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "run.yaml:9:12",
        "run.yaml:13:5",
        "run.yaml:14:13",
        "run.yaml:15:23",
        "run.yaml:16:24",
    ]
    assert "did you mean 'torch'" in lines[0]
    assert "unknown key 'capasity' in storage.options (did you mean capacity?)" in lines[1]
    assert "storage.options.policy is wrong (found 'fifo', expected 'none', " in lines[2]
    assert "did you mean 'local'" in lines[3]
    assert "unknown key 'port' in rendezvous.options" in lines[4]


def test_a_stack_without_its_package_is_reported_with_the_install_command() -> None:
    text = RATINGS + "storage:\n  backend: tiered\n  options: {tiers: [memory, memory]}\n"
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="f", plugin_manager=make_plugin_manager(entry_points=False))
    (line,) = [each for each in str(caught.value).splitlines() if "tiered" in each]
    assert 'install it with: pip install "sparring[tiered]"' in line


@pytest.mark.parametrize("name", ["mpi", "nccl"])
def test_a_collective_without_its_package_is_reported_with_the_install_command(name: str) -> None:
    text = RATINGS + f"collective:\n  backend: {name}\n"
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="f", plugin_manager=make_plugin_manager(entry_points=False))
    (line,) = [each for each in str(caught.value).splitlines() if f"'{name}'" in each]
    assert f'install it with: pip install "sparring[{name}]"' in line


def places_and_problems(text: str, *plugins: str) -> dict[str, str]:
    """Returns line:column → error, with the parts of core and of the given plugin modules.

    Core has no framework, which is an error at 1:1.
    """
    manager = make_plugin_manager(entry_points=False)
    for plugin in plugins:
        manager.load(PluginSource(plugin, plugin, "1", partial(import_module, plugin)))
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="f", plugin_manager=manager)
    lines = str(caught.value).splitlines()
    found = {line.split(": ")[0].removeprefix("f:"): line for line in lines}
    found.pop("1:1", None)
    return found


def test_an_unknown_backend_is_reported_together_with_all_other_errors() -> None:
    found = places_and_problems(
        RATINGS
        + "framework: torhc\n"
        + "seed: x\n"
        + "storage: {backend: memry, optons: {}}\n"
        + "collective: {backend: locl, options: 5}\n"
        + "training: {epochs: 0}\n"
        + "snapshots: {every_steps: 3, resume: true}\n"
        + "tables: {overrides: {usr: {}, itm: {}}, dtpe: float32}\n"
    )
    suggested = {
        "9:12": "did you mean 'torch'",
        "11:20": "did you mean 'memory'",
        "11:27": "did you mean options?",
        "12:23": "did you mean 'local'",
        "14:26": "a folder in snapshots.url",
        "14:37": "a folder in snapshots.url",
        "15:22": "did you mean user?",
        "15:31": "did you mean item?",
        "15:41": "did you mean dtype?",
    }
    for place, words in suggested.items():
        assert words in found.pop(place)
    assert list(found) == ["10:7", "12:38", "13:20"]


def test_a_wrong_backend_of_a_wrong_type_is_reported_once() -> None:
    text = RATINGS + "storage: {backend: 5, options: {capacity: 1}}\nframework: 7\nrendezvous: 3\n"
    assert list(places_and_problems(text)) == ["9:20", "10:12", "11:13"]


def test_an_unknown_storage_of_a_stack_is_reported_with_wrong_options_of_the_stack() -> None:
    found = places_and_problems(
        RATINGS
        + "storage:\n  backend: tiered\n  options:\n    promot: always\n    write: bak\n"
        + "    tiers: [{backend: memry, buget: 3}, {backend: memory, options: {capasity: 3}}]\n",
        "sparring_tiered.plugin",
    )
    assert list(found) == ["12:5", "13:12", "14:23", "14:30", "14:69"]
    assert "did you mean 'memory'" in found["14:23"]


def test_contradictory_sections_are_all_reported() -> None:
    text = (
        "data: {kind: synthetic_criteo}\nmodel: {kind: matrix_factorization}\n"
        "training: {micro_batches: 5000}\nsnapshots: {every_steps: 1, every_minutes: 1}\n"
    )
    assert list(places_and_problems(text)) == ["1:14", "3:27", "4:26", "4:44"]
    # An invalid key does not cause errors of other keys.
    text = text.replace("synthetic_criteo", "synthetic").replace("every_steps: 1", "every_steps: x")
    assert list(places_and_problems(text)) == ["1:14", "4:26"]


def test_a_section_that_contradicts_itself_without_its_unknown_key_is_not_checked_further() -> None:
    text = (
        "data: {kind: table, path: a.csv, label: y, categorical: [u], required: [v], other: 1}\n"
        "model: {kind: dlrm}\n"
    )
    assert list(places_and_problems(text)) == ["1:77"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: .*found no such file"):
        load_config(tmp_path / "missing.yaml")


def test_a_folder_is_not_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found a folder"):
        load_config(tmp_path)


def test_a_pipe_is_rejected_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="found no regular file"):
        load_config(tmp_path / "pipe")


def test_a_file_that_is_not_utf8_names_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes("seed: 1\nframework: caf\u00e9\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"run\.yaml:2:15: .*not UTF-8.*found byte 0xE9"):
        load_config(path)


def test_a_huge_file_is_rejected_unread(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"#" * (CONFIG_LIMITS.max_bytes + 1))
    with pytest.raises(ConfigError, match="found more than 262,144 bytes"):
        load_config(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read any file")
def test_a_file_without_read_permission_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RATINGS)
    path.chmod(0)
    with pytest.raises(ConfigError, match="Permission denied"):
        load_config(path)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from(" \n\t-:?[]{}&*!|>'\"%@#,abkind1.\x85\ufeff"), max_size=40))
def test_any_text_raises_only_config_errors(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_config(text)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30), st.text(max_size=30))
def test_any_override_raises_only_config_errors(key: str, value: str) -> None:
    try:
        parse_config(RATINGS, [f"{key}={value}", f"data.{key}={value}", value])
    except ConfigError:
        return
