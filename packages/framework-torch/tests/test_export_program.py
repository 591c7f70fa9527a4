"""Exported programs: their results, their binding to tables, and a run from C++ without Python."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparring.errors import InvalidArgumentError, PluginError
from sparring_testing.frameworks.exported_program import (
    Ask,
    check_run_without_python,
    check_versions_are_not_mixed,
    damage_files,
)
from sparring_torch import (
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    Optimizer,
    PoolingType,
    ProgramError,
    export_program,
    load_program,
)
from sparring_torch.program.library import load_library

sparring_packed: Any = pytest.importorskip("sparring_packed")
if not sparring_packed.library_path().exists():
    pytest.skip("libsparring_packed.so is not built", allow_module_level=True)
RELEASE = tuple(int(each) for each in torch.__version__.split("+")[0].split(".")[:2])
if RELEASE < (2, 10):
    pytest.skip(f"programs need torch 2.10, found {torch.__version__}", allow_module_level=True)

pytestmark = pytest.mark.slow  # a C++ compiler compiles the program for half a minute
EXAMPLE = Path(__file__).parents[1] / "examples/run_program.cc"
FEATURES = ["user", "unused", "seen", "bought"]  # no table looks up the second


class Model(nn.Module):
    """A model with every kind of lookup, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        where: dict[str, Any] = {"storage": "memory"}
        self.bags = EmbeddingBagCollection(
            [
                EmbeddingBagConfig(name="item", embedding_dim=4, feature_names=["seen", "bought"]),
                EmbeddingBagConfig(
                    name="user", embedding_dim=2, feature_names=["user"], pooling=PoolingType.MEAN
                ),
            ],
            **where,
        )
        self.sequences = EmbeddingCollection(
            [EmbeddingConfig(name="word", embedding_dim=3, feature_names=["seen"])], **where
        )
        self.country = Embedding(3, name="country", padding_idx=0, **where)
        self.tags = EmbeddingBag(5, name="tags", mode="mean", padding_idx=7, **where)
        self.top = nn.Linear(4 + 4 + 2 + 3 + 5, 1)

    def forward(
        self, ids: Tensor, lengths: Tensor, country: Tensor, tags: Tensor, offsets: Tensor
    ) -> tuple[Tensor, Tensor]:
        batch = KeyedJaggedTensor(FEATURES, ids, lengths=lengths)
        parts = [self.bags(batch).values(), self.country(country), self.tags(tags, offsets)]
        return self.top(torch.cat(parts, 1)), self.country(country.view(-1, 1))


class Words(nn.Module):
    """A model with only sequences, whose rows are concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences = EmbeddingCollection(
            [EmbeddingConfig(name="word", embedding_dim=3, feature_names=["seen"])],
            storage="memory",
        )

    def forward(self, batch: KeyedJaggedTensor) -> Tensor:
        values: Tensor = self.sequences(batch)["seen"].values()
        return values * 2


def batch_of(size: int, seed: int) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(FEATURES) * size,), generator=random)
    ids = torch.randint(-40, 40, (int(lengths.sum()),), generator=random)
    tags = torch.randint(0, 20, (3 * size,), generator=random)
    return (
        ids,
        lengths,
        torch.randint(0, 9, (size,), generator=random),
        tags,
        torch.arange(0, 3 * size, 3),
    )


@dataclass
class Exported:
    """A model with further training, its serving snapshots, and a program per kind of binding."""

    model: Model
    optimizer: Optimizer
    folder: Path
    num_saved: int = 0

    @property
    def served(self) -> Path:
        return self.folder / "served"

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    def train_and_publish(self) -> None:
        self.model.train()
        with torch.no_grad():  # as if an optimizer had trained the layer
            self.model.top.weight += 0.02
            self.model.top.bias -= 0.125
        for step in range(3):
            self.optimizer.zero_grad()
            found, again = self.model(*batch_of(16, 100 * self.num_saved + step))
            (found.sum() + again.sum()).backward()
            self.optimizer.step()
        self.model.eval()
        self.num_saved += 1
        saved = self.folder / f"saved-{self.num_saved}"
        self.optimizer.container.save(str(saved))
        self.write(saved, self.served / f"step-{self.num_saved}", self.parameters)

    @property
    def parameters(self) -> dict[str, Tensor]:
        top = self.model.top
        return {"top.weight": top.weight.detach(), "top.bias": top.bias.detach()}

    def write(self, saved: Path, served: Path, parameters: dict[str, Tensor] | None) -> None:
        """Writes a serving snapshot with parameters of a model, or only with rows."""
        files = {}
        if parameters is not None:
            arrays = {name: each.numpy() for name, each in parameters.items()}
            files["parameters"] = sparring_packed.encode_parameters(arrays)
        options = sparring_packed.WriteOptions(model=files)
        sparring_packed.write(str(saved), str(served), options=options)

    def answers(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        with torch.no_grad():
            return list(self.model(*inputs))


def optimizer_of(model: nn.Module) -> Optimizer:
    return Optimizer(model, torch.optim.Adagrad, lr=0.1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    torch.manual_seed(0)
    model = Model()
    made = Exported(model, optimizer_of(model), tmp_path_factory.mktemp("program"))
    # Another lookup creates the rows of words: a table that was never trained is published, too.
    made.train_and_publish()
    sizes = tuple({0: torch.export.Dim.AUTO} for _ in range(5))
    export_program(
        model, batch_of(6, 1), made.bundle, served=made.served, follow=True, dynamic_shapes=sizes
    )
    return made


def bound_exactly(exported: Exported, folder: Path) -> Path:
    """The same program, with the handle of an export without `follow`."""
    copied = folder / "exact"
    shutil.copytree(exported.bundle, copied)
    binding = (copied / "binding.txt").read_text().replace("follow:", "exact:", 1)
    (copied / "binding.txt").write_text(binding)
    sparring_packed.programs.write_file_list(copied)
    return copied


def test_a_program_equals_the_model_and_loads_newer_rows_and_parameters(exported: Exported) -> None:
    with load_program(exported.bundle, exported.served) as program:
        first = program.version
        for size in (6, 1, 40):
            inputs = batch_of(size, size)
            for found, expected in zip(program(*inputs), exported.answers(inputs), strict=True):
                assert torch.equal(found, expected)
        exported.train_and_publish()
        inputs = batch_of(9, 9)
        old = program(*inputs)[0]
        assert not torch.equal(old, exported.answers(inputs)[0])
        assert program.refresh()
        assert not program.refresh()
        assert program.version != first
        for found, expected in zip(program(*inputs), exported.answers(inputs), strict=True):
            assert torch.equal(found, expected)
    with pytest.raises(RuntimeError, match="call sparring_program_bind"):
        program(*inputs)


def test_versions_with_other_parameters_are_rejected(exported: Exported, tmp_path: Path) -> None:
    saved, served = exported.folder / "saved-1", tmp_path / "served"
    later = exported.folder / f"saved-{exported.num_saved}"
    assert exported.num_saved > 1
    good = exported.parameters
    exported.write(saved, served / "a", None)
    inputs = batch_of(4, 3)
    with load_program(exported.bundle, served) as program:
        first, exported_with = program.version, program(*inputs)[0]
        for number, (parameters, message) in enumerate(
            [
                (
                    good | {"top.bias": torch.zeros(2)},
                    r"'top.bias' of version .* is F32 \(2\), .* F32 \(1\)",
                ),
                (
                    good | {"top.bias": torch.zeros(1).double()},
                    r"is F64 \(1\), and the program needs F32",
                ),
                ({"top.bias": good["top.bias"]}, r"version .* has no parameter 'top\.weight'"),
            ]
        ):
            exported.write(later, served / f"b{number}", parameters)
            for _ in range(2):
                with pytest.raises(ProgramError, match=message):
                    program.refresh()
            assert program.version == first
            assert torch.equal(program(*inputs)[0], exported_with)
        exported.write(later, served / "c", good)
        assert program.refresh()
        changed = program(*inputs)[0]
        assert not torch.equal(changed, exported_with)
        exported.write(later, served / "d", None)
        with pytest.raises(ProgramError, match="has no parameters of the model, but the current"):
            program.refresh()
        assert torch.equal(program(*inputs)[0], changed)
    with load_program(exported.bundle, served) as program:
        assert not torch.equal(program(*inputs)[0], changed)  # parameters of the export


def test_a_run_reads_the_version_that_it_holds_after_a_refresh(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refreshes the program between the beginning of a run and its first lookup."""
    functions = load_library().functions
    hold_version, inputs = functions.hold_version, batch_of(7, 7)
    with load_program(exported.bundle, exported.served) as program:
        before, old = program(*inputs), program.version

        @contextmanager
        def hold_and_refresh(handle: str) -> Iterator[int]:
            with hold_version(handle) as held:
                parameters = [each.data.tobytes() for each in functions.parameters(held)]
                exported.train_and_publish()
                assert program.refresh()
                assert [each.data.tobytes() for each in functions.parameters(held)] == parameters
                yield held
            with pytest.raises(ProgramError, match="no run holds version number"):
                functions.parameters(held)

        with monkeypatch.context() as patch:
            patch.setattr(functions, "hold_version", hold_and_refresh)
            during = program(*inputs)
        assert program.version != old
        outputs = (before, during, program(*inputs), exported.answers(inputs))
        for first, found, newer, expected in zip(*outputs, strict=True):
            assert torch.equal(found, first)
            assert not torch.equal(found, newer)
            assert torch.equal(newer, expected)


def test_runs_read_one_version_while_versions_change(exported: Exported) -> None:
    inputs = batch_of(5, 8)
    with load_program(exported.bundle, exported.served) as program:
        check_versions_are_not_mixed(
            lambda: program(*inputs)[0].numpy().tobytes(),
            program.refresh,
            exported.train_and_publish,
        )


def test_a_program_of_one_version_reads_no_other(exported: Exported, tmp_path: Path) -> None:
    library = load_library().functions
    copied = bound_exactly(exported, tmp_path)
    library.bind(copied, str(exported.served / "step-1"))
    with pytest.raises(ProgramError, match=r"is bound to version .*; export it with follow"):
        library.refresh(copied)
    library.release(copied)
    exported.train_and_publish()
    with pytest.raises(ProgramError, match=r"is bound to version .* the newest .* is"):
        library.bind(copied, str(exported.served))


def test_damaged_and_foreign_bundles_are_rejected(exported: Exported, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no bundle of a program at"):
        load_program(tmp_path, exported.served)
    copied = tmp_path / "copied"
    shutil.copytree(exported.bundle, copied)
    content = bytearray((copied / "program.pt2").read_bytes())
    content[len(content) // 2] ^= 1
    (copied / "program.pt2").write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=r"program\.pt2 is damaged"):
        load_program(copied, exported.served)
    description = json.loads((copied / "bundle.json").read_text()) | {
        "format": "sparring-program/9"
    }
    (copied / "bundle.json").write_text(json.dumps(description))
    with pytest.raises(InvalidArgumentError, match="has the format 'sparring-program/9'"):
        load_program(copied, exported.served)


def test_no_damaged_file_of_a_bundle_is_bound(exported: Exported, tmp_path: Path) -> None:
    """Checked by Python, which must do so before it loads a library, and by the C function."""
    library = load_library().functions
    copied = tmp_path / exported.bundle.name
    shutil.copytree(exported.bundle, copied)
    served = str(exported.served)
    names = set()
    for path in damage_files(copied):
        names.add(str(path.relative_to(copied)))
        with pytest.raises(ProgramError, match=re.escape(f"{path} is ")):
            library.bind(copied, served)
        with pytest.raises(InvalidArgumentError):
            load_program(copied, served)
    assert names >= {
        "bundle.json",
        "binding.txt",
        "files.txt",
        "program.pt2",
        "lib/libsparring_program.so",
        "lib/libsparring_packed.so",
        "include/sparring_program.h",
    }
    library.bind(copied, served)
    library.release(copied)


def test_tables_of_another_model_are_rejected(exported: Exported, tmp_path: Path) -> None:
    other = Embedding(7, name="country", storage="memory")
    optimizer = optimizer_of(other)
    other(torch.arange(3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.container.save(str(tmp_path / "saved"))
    served = str(tmp_path / "served")
    sparring_packed.write(str(tmp_path / "saved"), served)
    with pytest.raises(InvalidArgumentError, match=r"table 'country' of dim 7, but .* has dim 3"):
        export_program(other, (torch.arange(3),), tmp_path / "out", served=exported.served)
    with pytest.raises(ProgramError, match=r"has no table '|table 'country' has dim 7"):
        load_program(exported.bundle, served)
    with pytest.raises(InvalidArgumentError, match="exists; choose another folder"):
        export_program(other, (torch.arange(3),), exported.bundle, served=served)
    with pytest.raises(InvalidArgumentError, match="found no table in 1 modules"):
        export_program(nn.Linear(2, 2), (torch.ones(1, 2),), tmp_path / "out", served=served)
    assert not (tmp_path / "out").exists()


def operators_of(exported: Exported) -> tuple[Any, str]:
    library = load_library().functions
    library.bind(exported.bundle, str(exported.served))
    handle = (exported.bundle / "binding.txt").read_text().splitlines()[0]
    return torch.ops.sparring_program, handle


class Traced(nn.Module):
    def __init__(self, handle: str) -> None:
        super().__init__()
        self.handle = handle

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = torch.ops.sparring_program.lookup(self.handle, "country", 3, False, 0, ids)
        return found + 1


@pytest.mark.parametrize("how", ["trace", "script"])
def test_operators_work_in_torchscript(exported: Exported, how: str, tmp_path: Path) -> None:
    _, handle = operators_of(exported)
    ids = torch.tensor([[1, 2], [5, 99]])
    module = Traced(handle)
    made: Any = torch.jit.trace(module, ids) if how == "trace" else torch.jit.script(module)
    made.save(str(tmp_path / "module.pt"))
    loaded = torch.jit.load(str(tmp_path / "module.pt"))
    expected = exported.model.country(torch.tensor([[1, 2], [5, 99]])).detach() + 1
    assert torch.equal(loaded(ids), expected)


def test_bags_are_accepted_in_each_form(exported: Exported) -> None:
    operators, handle = operators_of(exported)

    def pooled(
        form: int, ids: Tensor, bags: Tensor | None, weights: Tensor | None, n: int
    ) -> Tensor:
        made: Tensor = operators.pooled_lookup(
            handle, "tags", [5], [0], True, 7, form, ids, bags, weights, [0], n
        )
        return made

    ids = torch.tensor([[1, 7, 3], [2, 2, 7]])
    rows = operators.lookup(handle, "tags", 5, True, 7, ids)
    assert not rows[0, 1].any()
    expected = rows.sum(1)
    flat = ids.view(-1)
    assert torch.equal(pooled(0, ids, None, None, 2), expected)
    assert torch.equal(pooled(1, flat, torch.tensor([0, 3]), None, 2), expected)
    assert torch.equal(pooled(2, flat.int(), torch.tensor([0, 3, 6]), None, 2), expected)
    assert torch.equal(pooled(3, flat, torch.tensor([3, 3]), None, 2), expected)
    weights = torch.tensor([2.0, 9, 1, 1, 3, 9])
    weighted = (rows * weights.view(2, 3, 1)).sum(1)
    torch.testing.assert_close(pooled(1, flat, torch.tensor([0, 3]), weights, 2), weighted)
    for form, bags, message in (
        (3, [3, 2], "bags end at id 5, .* there are 6 ids"),
        (3, [-1, 7], "negative"),
        (2, [0, 3], "bags end at id 3"),
    ):
        with pytest.raises(RuntimeError, match=message):
            pooled(form, flat, torch.tensor(bags), None, 2)
    with pytest.raises(RuntimeError, match="ids must be int64 or int32"):
        pooled(1, flat.float(), torch.tensor([0, 3]), None, 2)
    with pytest.raises(
        RuntimeError, match="has dim 5 in the serving snapshot, and the program needs 6"
    ):
        operators.lookup(handle, "tags", 6, False, 0, ids)
    with pytest.raises(RuntimeError, match="has no tables: call sparring_program_bind"):
        operators.lookup("exact:0:none", "tags", 5, False, 0, ids)


@pytest.mark.long
def test_sequences_are_exported(tmp_path: Path) -> None:
    model = Words()
    optimizer = optimizer_of(model)

    def batch(size: int) -> KeyedJaggedTensor:
        lengths = torch.arange(2 * size) % 3
        ids = torch.arange(int(lengths.sum()))
        return KeyedJaggedTensor(["unused", "seen"], ids, lengths=lengths).sync()

    model(batch(9)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.container.save(str(tmp_path / "saved"))
    sparring_packed.write(str(tmp_path / "saved"), str(tmp_path / "served"))
    export_program(model, (batch(6),), tmp_path / "bundle", served=tmp_path / "served")
    with load_program(tmp_path / "bundle", tmp_path / "served") as program:
        assert torch.equal(program(batch(6)), model(batch(6)).detach())


@pytest.mark.long
def test_a_program_runs_from_cpp_without_python(exported: Exported, tmp_path: Path) -> None:
    of_torch, bundle = Path(torch.__file__).parent, exported.bundle
    program = tmp_path / "run_program"
    includes = (
        bundle / "include",
        of_torch / "include",
        of_torch / "include/torch/csrc/api/include",
    )
    libraries = (bundle / "lib", of_torch / "lib")
    subprocess.run(
        ["c++", "-std=c++20", "-O1", str(EXAMPLE), "-o", str(program),
         *(f"-I{each}" for each in includes), *(f"-L{each}" for each in libraries),
         "-Wl,--no-as-needed", "-lsparring_program", "-lsparring_packed",
         "-ltorch", "-ltorch_cpu", "-lc10",
         *(f"-Wl,-rpath,{each}" for each in libraries)],
        check=True,
    )  # fmt: skip

    def publish() -> int:
        exported.train_and_publish()
        return 3 * exported.num_saved

    def check_run(ask: Ask) -> None:
        inputs = batch_of(11, 5)
        torch.save(list(inputs), tmp_path / "in.pt")
        assert ask(f"run {tmp_path / 'in.pt'} {tmp_path / 'out.pt'}") == "ran"
        found = torch.load(tmp_path / "out.pt")
        for mine, expected in zip(found, exported.answers(inputs), strict=True):
            assert torch.equal(mine, expected)

    check_run_without_python(program, bundle, exported.served, publish, check_run)


def test_without_sparring_packed_the_install_command_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sparring_packed", None)
    with pytest.raises(PluginError, match="run: pip install sparring-packed"):
        load_program(tmp_path, tmp_path)
