"""`sparring train` and `sparring config`: their output, its destination, and the exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from sparring_testing.fixtures.runs import RunCommand
from sparring_testing.processes.plugin_site import Site
from sparring_train.config.reading.loader import parse_config

RATINGS = """\
framework: acme
data: {kind: table, path: ratings.csv, label: rating, categorical: [user, item], required: [user, item]}
model: {kind: matrix_factorization}
storage: {backend: memory}
training: {log_interval_seconds: 0.001}
"""

FRAMEWORK = """
    import os, time
    from sparring import errors
    from sparring.contracts import FrameworkDescriptor, hookimpl
    from sparring_train.hookspecs import TrainerDescriptor
    from sparring_train.run.result import TrainResult

    def train(config, plugin_manager, progress):
        plugin_manager.storage(config.storage.backend)
        if config.seed == 1:
            raise errors.DataError("ratings.csv:3: column rating: found 'x', expected a number")
        if config.seed == 2:
            raise errors.StorageIOError("the disk is full")
        if config.seed == 3:
            raise ZeroDivisionError("a bug")
        if config.seed == 4:
            raise KeyboardInterrupt
        progress.on_start(3)
        if config.seed == 5:
            print("training", flush=True)
            time.sleep(60)
        for step in range(1, 4):
            time.sleep(0.002)
            progress.on_step(step, 1 / step, config.data.batch_size)
        progress.on_metrics(3, {"rmse": 0.875})
        progress.on_end()
        rmse = float("nan") if config.seed == 6 else 0.875
        return TrainResult(
            metrics={"rmse": rmse},
            rows={"user": 610, "item": 9000},
            steps=3,
            seconds=1.5,
            extra={
                "best_rmse": 0.86,
                "report_path": "report.html",
                "trace_path": config.report.trace_path,
            },
        )

    @hookimpl
    def sparring_register_framework():
        return [
            FrameworkDescriptor(
                name="acme", api_version=(1, 0), summary="For a test.", module="acme"
            )
        ]

    @hookimpl(optionalhook=True)
    def sparring_register_trainers():
        return [TrainerDescriptor(name="acme", api_version=(1, 0), train=train)]
"""


@pytest.fixture
def run(
    site: Site, run_sparring: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunCommand:
    """Runs `sparring` in a folder with run.yaml, with the framework acme."""
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(RATINGS)
    site.install("acme-frame", FRAMEWORK)
    return run_sparring


# -- train ----------------------------------------------------------------------


def test_trace_reports_its_file(run: RunCommand) -> None:
    assert "trace path: out.json" in run("train", "run.yaml", "--trace", "out.json").out
    assert "trace path" not in run("train", "run.yaml").out


def test_train_prints_metrics_rows_and_time(run: RunCommand) -> None:
    ending = run("train", "run.yaml")
    assert ending.code == 0
    for part in ("test rmse", "0.8750", "best possible 0.8600", "9,000", "report.html"):
        assert part in ending.out


def test_many_tables_are_summarized(site: Site, run: RunCommand) -> None:
    source = FRAMEWORK.replace(
        'rows={"user": 610, "item": 9000}', 'rows={f"c{i}": 10 * i for i in range(1, 27)}'
    )
    (site.folder / "acme_frame_plugin.py").write_text(dedent(source))
    ending = run("train", "run.yaml")
    assert "rows of 26 tables" in ending.out
    assert "3,510" in ending.out
    assert "from 10 (c1) to 260 (c26)" in ending.out


def test_train_json_is_the_last_line_of_standard_output(run: RunCommand) -> None:
    ending = run("train", "run.yaml", "--json")
    assert ending.last_json == {
        "metrics": {"rmse": 0.875},
        "rows": {"user": 610, "item": 9000},
        "steps": 3,
        "seconds": 1.5,
    }
    assert len(ending.out.splitlines()) == 1


def test_skipped_gradients_are_reported(site: Site, run: RunCommand) -> None:
    skipped = 'skipped={"rows_skipped_non_finite": 7},\n            seconds=1.5'
    (site.folder / "acme_frame_plugin.py").write_text(
        dedent(FRAMEWORK.replace("seconds=1.5", skipped))
    )
    assert "rows skipped non finite: 7" in run("train", "run.yaml").out
    assert run("train", "run.yaml", "--json").last_json["rows_skipped_non_finite"] == 7


def test_gradients_that_were_not_admitted_are_reported(site: Site, run: RunCommand) -> None:
    dropped = 'not_admitted={"user": 1200, "item": 34567},\n            seconds=1.5'
    (site.folder / "acme_frame_plugin.py").write_text(
        dedent(FRAMEWORK.replace("seconds=1.5", dropped))
    )
    ending = run("train", "run.yaml")
    assert "gradients not admitted" in ending.out
    assert "35,767" in ending.out
    assert "most in item: 34,567" in ending.out
    assert run("train", "run.yaml", "--json").last_json["not_admitted"] == {
        "user": 1200,
        "item": 34567,
    }


def test_json_stays_json_when_a_metric_is_not_finite(run: RunCommand) -> None:
    assert run("train", "run.yaml", "seed=6", "--json").last_json["metrics"] == {"rmse": None}


def test_progress_goes_to_standard_error(run: RunCommand) -> None:
    ending = run("train", "run.yaml", "--json")
    assert "step 1 of 3  loss 1.0000" in ending.err
    assert "step 3  test rmse 0.8750" in ending.err
    assert "\x1b" not in ending.err


def test_overrides_reach_the_framework(run: RunCommand) -> None:
    assert "1,024" not in run("train", "run.yaml", "data.batch_size=7").err
    ending = run("train", "run.yaml", "storage.backend=memry")
    assert ending.code == 2
    assert "override storage.backend=memry: storage 'memry' is unknown" in ending.err
    assert "did you mean 'memory'" in ending.err


@pytest.mark.parametrize(
    ("seed", "code", "message"),
    [
        (1, 2, "error: ratings.csv:3: column rating: found 'x', expected a number\n"),
        (2, 1, "error: the disk is full\n"),
    ],
)
def test_an_error_is_one_message_and_an_exit_code(
    run: RunCommand, seed: int, code: int, message: str
) -> None:
    ending = run("train", "run.yaml", f"seed={seed}")
    assert (ending.code, ending.out, ending.err) == (code, "", message)


def test_a_file_of_examples_needs_a_configuration_on_several_ranks(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("log.csv").write_text("user,clicked\n1,0\n")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ending = run("train", "log.csv", "label=clicked")
    assert ending.code == 2
    assert "run once: sparring init log.csv label=clicked --output log.yaml" in ending.err
    assert not Path("log.yaml").exists()


def test_debug_shows_the_origin_of_an_error(site: Site, run: RunCommand) -> None:
    done = sparring("--debug", "train", "run.yaml", "seed=1", site=site)
    assert done.returncode not in (0, 130)
    assert "Traceback" in done.stderr
    assert "in train" in done.stderr


def test_a_bug_is_not_hidden(run: RunCommand) -> None:
    with pytest.raises(ZeroDivisionError):
        run("train", "run.yaml", "seed=3")


def test_an_interrupt_ends_with_130(run: RunCommand) -> None:
    ending = run("train", "run.yaml", "seed=4")
    assert (ending.code, ending.err) == (130, "error: stopped by Ctrl-C\n")


def test_ctrl_c_ends_the_process_with_130_and_no_traceback(site: Site, run: RunCommand) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sparring", "train", "run.yaml", "seed=5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(site),
        # A background job of a shell starts with SIGINT ignored, and so would its children.
        preexec_fn=lambda: signal.signal(  # noqa: PLW1509 - no other thread runs here
            signal.SIGINT, signal.default_int_handler
        ),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "stopped by Ctrl-C" in err
    assert "Traceback" not in err


def test_a_framework_that_cannot_run_here_reports_the_reason(site: Site, run: RunCommand) -> None:
    source = FRAMEWORK.replace('module="acme"', "module='acme', unavailable=lambda: 'no device'")
    (site.folder / "acme_frame_plugin.py").write_text(dedent(source))
    ending = run("train", "run.yaml")
    assert ending.code == 2
    assert "framework 'acme' is not available: no device" in ending.err


# -- config ---------------------------------------------------------------------


def test_config_check_prints_one_line(run: RunCommand) -> None:
    ending = run("config", "check", "run.yaml")
    assert (ending.code, ending.out, ending.err) == (0, "run.yaml: correct\n", "")


def test_config_check_lists_every_error(run: RunCommand) -> None:
    ending = run("config", "check", "run.yaml", "sead=1", "training.epochs=0")
    assert (ending.code, ending.out) == (2, "")
    assert ending.err.splitlines() == [
        "override sead=1: unknown key 'sead' (did you mean seed?)",
        "override training.epochs=0: training.epochs is wrong (found 0, expected a number of at "
        "least 1)",
        "2 errors in the configuration",
    ]


def test_config_check_validates_options_of_backends(run: RunCommand) -> None:
    ending = run("config", "check", "run.yaml", "storage.options.capasity=3")
    assert ending.code == 2
    assert "unknown key 'capasity' in storage.options (did you mean capacity?)" in ending.err


def test_config_show_prints_the_effective_configuration(run: RunCommand) -> None:
    ending = run("config", "show", "run.yaml", "training.epochs=7")
    assert ending.code == 0
    given = ["training.epochs=7", f"data.path={Path.cwd() / 'ratings.csv'}"]
    assert parse_config(ending.out) == parse_config(RATINGS, given)


def test_a_missing_file_is_a_clean_error(run: RunCommand) -> None:
    ending = run("config", "show", "nothing.yaml")
    assert ending.code == 2
    assert ending.err.startswith("nothing.yaml: cannot read the file (found no such file")


def test_a_non_finite_metric_is_null_and_reported_on_standard_error(run: RunCommand) -> None:
    ending = run("train", "run.yaml", "seed=6", "--json")
    assert ending.code == 0
    assert ending.last_json["metrics"] == {"rmse": None}
    assert "NaN" not in ending.out
    assert "warning: metric rmse is nan (null in the JSON output)" in ending.err
    ending = run("train", "run.yaml", "seed=6")
    assert "metric rmse is nan; the training diverged" in ending.err
    assert "JSON" not in ending.err
    assert "warning" not in run("train", "run.yaml", "--json").err


# -- the program ---------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["train"], ["config"], ["train", "--nonsense"]])
def test_wrong_usage_ends_with_2(run: RunCommand, arguments: list[str]) -> None:
    assert run(*arguments).code == 2


@pytest.mark.parametrize("command", ["train", "config"])
def test_every_command_has_help(run: RunCommand, command: str) -> None:
    ending = run(command, "--help")
    assert ending.code == 0
    assert "Usage: sparring " + command in ending.out


def environment(site: Site) -> dict[str, str]:
    paths = [str(site.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def sparring(*arguments: str, site: Site) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sparring", *arguments],
        capture_output=True,
        text=True,
        env=environment(site),
        check=False,
        timeout=60,
    )
