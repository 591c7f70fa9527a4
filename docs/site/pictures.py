"""Creates the pictures of reports and of a service in ``docs/pictures``.

    python docs/site/pictures.py

Needs the packages of `nox -s serving_demo` and `nox -s quickstart`, sparring-plan, matplotlib, and the
program chromium; `looking` also the folder ml-latest-small of MovieLens in the folder SPARRING_TEST_DATA.
It takes about two minutes. Its times apply to the machine that runs it.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs/pictures"
BLUE, ORANGE = "#0072B2", "#D55E00"


def run(*command: str | Path) -> None:
    """Runs a command of sparring in this environment."""
    words = [str(Path(sys.executable).with_name("sparring")), *map(str, command)]
    subprocess.run(words, cwd=ROOT, check=True)


def photograph(page: Path, picture: str, width: int, height: int) -> None:
    """Writes the top of a page as PNG."""
    subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--window-size={width},{height}", f"--screenshot={PICTURES / picture}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip


def training(folder: Path) -> None:
    """Creates the pictures of the report of a run, and of its figure of times."""
    page = folder / "report.html"
    run("train", "configs/quickstart.yaml", f"report.path={page}")
    photograph(page, "training.png", 1000, 910)
    # Only the figure, without the rest of the page.
    text = page.read_text("utf-8")
    figures = text.split("<figure>")
    (times,) = (each for each in figures if each.startswith("<h3>Time of a step</h3>"))
    head = text.partition("<h1>")[0]
    figure = folder / "times.html"
    figure.write_text(f"{head}<figure>{times.partition('</figure>')[0]}</figure>", "utf-8")
    photograph(figure, "times.png", 1000, 680)


def looking(folder: Path) -> None:
    """Creates the picture of the page about the tables of a run, with the mean ratings of films."""
    ratings = Path(os.environ["SPARRING_TEST_DATA"]) / "ml-latest-small/ratings.csv"
    with ratings.open() as file:
        by_film: dict[str, list[float]] = {}
        for line in csv.DictReader(file):
            by_film.setdefault(line["movieId"], []).append(float(line["rating"]))
    means = "".join(f"{film},{sum(each) / len(each):.2f}\n" for film, each in by_film.items())
    films, page = folder / "films.csv", folder / "look.html"
    films.write_text(f"movieId,mean rating\n{means}")
    snapshots = f"snapshots.url={folder}/films"
    run("train", "configs/movielens.yaml", f"data.path={ratings}", snapshots)
    colors = ("--colors", films, "--color-by", "mean rating")
    run("look", folder / "films", *colors, "--output", page)
    photograph(page, "look.png", 1150, 1140)


def planning(folder: Path) -> None:
    """Creates the picture of the report of a plan."""
    inputs, plan, page = "configs/plans/quickstart.yaml", folder / "plan.yaml", folder / "plan.html"
    run("plan", "make", inputs, "--output", plan)
    run("plan", "report", plan, inputs, page)
    photograph(page, "plan.png", 1150, 1075)


def serving(folder: Path) -> None:
    """Runs the serving demo, and draws the age of the rows and the latency of each pull."""
    sys.path.insert(0, str(ROOT / "packages/serve/examples"))
    import serving_demo

    begin = time.monotonic()
    times: list[float] = []
    latencies: list[float] = []
    ages: list[float] = []

    def on_pull(_: int, latency: float, age: float) -> None:
        times.append(time.monotonic() - begin)
        latencies.append(latency * 1e3)
        ages.append(age)

    serving_demo.serve_training(folder, ROOT / "configs/quickstart.yaml", (), on_pull)
    times = [each - times[0] for each in times]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sparring", "font.size": 10}):
        canvas = Figure(figsize=(8, 4.2), layout="constrained")
        upper, lower = canvas.subplots(2, 1, sharex=True)
        upper.plot(times, ages, color=BLUE, linewidth=1)
        upper.set_ylabel("age of the rows (s)")
        upper.set_title("A client that pulls rows of 26 tables from two shards during training")
        lower.plot(times, latencies, ".", color=ORANGE, markersize=2)
        lower.set_yscale("log")
        lower.yaxis.set_major_formatter("{x:g}")
        lower.set_ylabel("latency of a pull (ms)")
        lower.set_xlabel("time (s)")
        for axes in (upper, lower):
            axes.grid(color="#e4e7eb")
            axes.spines[["top", "right"]].set_visible(False)
        upper.set_ylim(bottom=0)
        canvas.savefig(PICTURES / "serving.png", dpi=110)


def main() -> None:
    """Creates all pictures, or those whose functions are named."""
    PICTURES.mkdir(exist_ok=True)
    known = {each.__name__: each for each in (training, looking, planning, serving)}
    for name in sys.argv[1:] or known:
        with tempfile.TemporaryDirectory() as folder:
            known[name](Path(folder))


if __name__ == "__main__":
    main()
