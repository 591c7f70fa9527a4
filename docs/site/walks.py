"""Writes the lists of files in `docs/explanation/architecture.md`, which are recorded from runs.

    python docs/site/walks.py save       prints the files that a walk runs through, in order
    python docs/site/walks.py --write    writes all lists to the page

Needs sparring, sparring-hkv, sparring-testing and sparring-torch. Each walk runs before it is
recorded, so that its list contains no files that run only once.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

import sparring
import sparring_torch as st
from sparring import StepContainer
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

PACKAGES = Path(__file__).parents[2] / "packages"
PAGE = PACKAGES.parent / "docs/explanation/architecture.md"
CORE = "core/src/sparring/"
VOCABULARY = ("contracts", "runtime")
"""Subpackages of core that are not on the path: dataclasses, checks of arguments, threads and lifecycles.
All other files of core decide or do something: they are the path."""


class Recorder:
    """Modules of sparring in which Python functions are called.

    The modules that the recording thread calls come first, in order of the first call. The modules that
    only other threads call follow in alphabetical order, because these threads run at the same time.
    """

    def __init__(self) -> None:
        self._called: dict[str, None] = {}
        self._called_elsewhere: set[str] = set()
        self._thread = 0
        self._is_on = False
        # Threads that exist already are not seen, so this comes before any walk.
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    @contextmanager
    def recording(self) -> Iterator[None]:
        # What an earlier walk left is not freed in the middle of this one.
        gc.collect()
        gc.disable()
        self._thread = threading.get_ident()
        self._is_on = True
        yield
        self._is_on = False
        gc.enable()

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if self._is_on and event == "call":
            module = str(frame.f_globals.get("__name__"))
            if threading.get_ident() == self._thread:
                self._called.setdefault(module)
            else:
                self._called_elsewhere.add(module)

    @property
    def modules(self) -> list[str]:
        return [*self._called, *sorted(self._called_elsewhere - self._called.keys())]


class Model:
    """One pooled table, trained by torch's Adagrad."""

    def __init__(self, container: StepContainer | None = None) -> None:
        config = st.EmbeddingBagConfig(name="item", embedding_dim=8, feature_names=["clicked"])
        self.bags = st.EmbeddingBagCollection(tables=[config], container=container)
        self.optimizer = st.Optimizer(self.bags, torch.optim.Adagrad, lr=0.05)
        self.container = self.optimizer.container

    def step(self) -> None:
        ids = torch.randint(0, 1000, (64,))
        batch = st.KeyedJaggedTensor(["clicked"], ids, lengths=torch.full((32,), 2))
        self.bags(batch).values().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def batch(recorder: Recorder) -> None:
    model = Model()
    for _ in range(3):
        model.step()
    with recorder.recording():
        model.step()


def batch_over_two_ranks(recorder: Recorder) -> None:
    group = sparring.LocalGroup(2)
    ready = threading.Barrier(2, timeout=300)

    def rank(number: int) -> None:
        container = StepContainer(collective=group.join(number), rendezvous=ThreadRendezvous(2))
        model = Model(container)
        for _ in range(3):
            model.step()
        ready.wait()
        if number == 0:
            with recorder.recording():
                model.step()
        else:
            model.step()
        ready.wait()
        container.close()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def save(recorder: Recorder) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Model()
        model.step()
        model.container.save(f"{folder}/first")
        model.step()
        with recorder.recording():
            model.container.save(f"{folder}/second")


def load(recorder: Recorder) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Model()
        model.step()
        model.container.save(f"{folder}/first")
        Model().container.load(f"{folder}/first")
        empty = Model()
        with recorder.recording():
            empty.container.load(f"{folder}/first")


WALKS: dict[str, Callable[[Recorder], None]] = {
    "batch": batch,
    "batch over two ranks": batch_over_two_ranks,
    "save": save,
    "load": load,
}


def files_of(walk: str) -> list[Path]:
    """Returns the files of all packages that a walk runs through, relative to `packages/`."""
    recorder = Recorder()
    WALKS[walk](recorder)
    sys.setprofile(None)
    files = []
    for module in recorder.modules:
        if module.startswith("sparring") and not module.startswith("sparring_testing"):
            files.append(source_of(module))
    return files


def source_of(module: str) -> Path:
    """Returns a module's file in this checkout, relative to `packages/`; it may run from a wheel."""
    path = module.replace(".", "/")
    found = [*PACKAGES.glob(f"*/src/{path}.py"), *PACKAGES.glob(f"*/src/{path}/__init__.py")]
    assert len(found) == 1, f"{module} has the sources {found}"
    return found[0].relative_to(PACKAGES)


def part_of(file: Path) -> str:
    """Returns the list of a walk that a file belongs to: path, vocabulary, or around core."""
    name = str(file)
    if not name.startswith(CORE):
        return "around core"
    room = name.removeprefix(CORE).partition("/")[0]
    return "vocabulary" if room in VOCABULARY else "path"


def main(arguments: list[str]) -> None:
    if arguments != ["--write"]:
        for file in files_of(arguments[0]):
            print(f"{part_of(file)}: {file}")
        return
    page = PAGE.read_text()
    described: set[Path] = set()
    for walk in WALKS:
        parts: dict[str, list[str]] = {"path": [], "vocabulary": [], "around core": []}
        for file in files_of(walk):
            name = str(file).removeprefix(CORE)
            line = f"[`{name}`](../../packages/{file})"
            if part_of(file) == "path" and file not in described:
                described.add(file)
                line += f": {first_line(file)}"
            parts[part_of(file)].append(line)
        path = parts.pop("path")
        in_core = len(path) + len(parts["vocabulary"])
        text = f"The path contains {len(path)} of the {in_core} files in core:\n\n"
        text += "".join(f"{number}. {line}\n" for number, line in enumerate(path, 1))
        for part, lines in parts.items():
            # Sorted, because threads call these in varying order.
            names = ",\n".join(sorted(lines))
            text += f"\n{part.capitalize()}:\n{names}.\n" * bool(lines)
        span = rf"(?<=<!-- walk: {walk} -->\n).*?(?=<!-- end -->)"
        page = re.sub(span, lambda _, text=text: f"\n{text}\n", page, count=1, flags=re.S)
    PAGE.write_text(page)


def first_line(file: Path) -> str:
    """Returns the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse((PACKAGES / file).read_text())) or ""
    return " ".join(text.split("\n\n", maxsplit=1)[0].split()).rstrip(".").split(". ")[0] + "."


if __name__ == "__main__":
    main(sys.argv[1:])
