"""Applies the table of renamed names, `renamed_names.tsv`, to a source tree.

    python tools/renamed_names.py --check          # lists problems of the table
    python tools/renamed_names.py --root TREE      # renames everything in a checkout

A line of the table contains the old name, the new name, path patterns (none: the whole repository), and
a mode:

- ``word``: whole words in every text file.
- ``name``: names in Python files, and strings and Markdown code that consist of exactly this word.
- ``module``: dotted paths; the file moves.
- ``key``: keys and commands; the line is a record, and the program that reads the key knows the old one.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

TABLE = Path(__file__).with_name("renamed_names.tsv")
SUFFIXES = {
    ".py", ".pyi", ".md", ".toml", ".yaml", ".yml", ".ini", ".cfg", ".cc", ".h", ".cu", ".cuh",
    ".cpp", ".proto", ".txt", ".html", ".js", ".css", ".sh", ".ipynb", ".cmake", ".supp", ".json",
}  # fmt: skip
KEPT = (
    "tools/renamed_names*",
    "tools/moved_names.py",
    "docs/reference/versions.md",
    "*/fixtures/*",
    "*/third_party/*",
)
"""Files that contain old names on purpose, or stored data."""


@dataclass(frozen=True)
class Rename:
    old: str
    new: str
    scope: tuple[str, ...]
    mode: str

    def applies_to(self, path: str) -> bool:
        return not self.scope or any(fnmatch(path, each) for each in self.scope)


def read_table(path: Path = TABLE) -> list[Rename]:
    """Returns the renames of the table, without the keys."""
    renames = []
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        old, new, scope, mode = [*(part.strip() for part in line.split("\t")), "", ""][:4]
        if mode != "key":
            renames.append(Rename(old, new, tuple(scope.split()), mode or "word"))
    return renames


def list_files(root: Path) -> Iterator[str]:
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split("\0"):
        suited = Path(name).suffix in SUFFIXES or Path(name).name == "CMakeLists.txt"
        if suited and not any(fnmatch(name, each) for each in KEPT) and (root / name).is_file():
            yield name


def rename_words(text: str, words: dict[str, str]) -> str:
    """Replaces whole words. A dot inside of a word is a dot."""
    if not words:
        return text
    alternatives = "|".join(re.escape(each) for each in sorted(words, key=len, reverse=True))
    return re.sub(rf"(?<![\w-])(?:{alternatives})(?!\w)", lambda found: words[found[0]], text)


def rename_tokens(text: str, names: dict[str, str]) -> str:
    """Replaces names of Python code, and strings that consist of exactly one of the names."""
    if not any(each in text for each in names):
        return text
    lines = text.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(text).readline))):
        new = None
        if token.type == tokenize.NAME:
            new = names.get(token.string)
        elif token.type == tokenize.STRING and token.string[1:-1] in names:
            new = token.string[0] + names[token.string[1:-1]] + token.string[-1]
        elif token.type == tokenize.STRING and token.string[:2].lower().startswith(("f", "rf")):
            # Before Python 3.12, an f-string is one token.
            new = rename_expressions(token.string, names)
        if new is not None and new != token.string:
            first, last = token.start[0] - 1, token.end[0] - 1
            before, after = lines[first][: token.start[1]], lines[last][token.end[1] :]
            lines[first : last + 1] = [before + new + after]
    return "".join(lines)


def rename_expressions(text: str, names: dict[str, str]) -> str:
    """Renames in the expressions of an f-string."""
    pattern = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, names))})(?!\w)")

    def rename(found: re.Match[str]) -> str:
        return pattern.sub(lambda name: names[name[0]], found[0])

    return re.sub(r"\{[^{}]*\}", rename, text)


def rename_file(path: str, text: str, renames: list[Rename]) -> str:
    suited = [each for each in renames if each.applies_to(path)]
    words = {each.old: each.new for each in suited if each.mode == "word"}
    names = {each.old: each.new for each in suited if each.mode == "name"}
    for each in suited:
        if each.mode == "module":
            words[each.old] = each.new
            words[each.old.replace(".", "/") + ".py"] = each.new.replace(".", "/") + ".py"
            # from PARENT import MODULE: only if both names differ.
            parent, _, module = each.old.rpartition(".")
            new_parent, _, new_module = each.new.rpartition(".")
            text = re.sub(
                rf"from {re.escape(parent)} import {module}\b",
                f"from {new_parent} import {new_module}", text,
            )  # fmt: skip
    text = rename_words(text, words)
    if names and path.endswith((".py", ".pyi")):
        text = rename_tokens(text, names)
    elif names and path.endswith(".md"):
        alternatives = "|".join(map(re.escape, names))
        text = re.sub(rf"`({alternatives})`", lambda found: f"`{names[found[1]]}`", text)
    return text


def rename_tree(root: Path, renames: list[Rename]) -> None:
    for name in list(list_files(root)):
        path = root / name
        old = path.read_text()
        new = rename_file(name, old, renames)
        if new != old:
            path.write_text(new)
    for each in renames:
        if each.mode == "module":
            old_file, new_file = (part.replace(".", "/") + ".py" for part in (each.old, each.new))
            for found in root.glob(f"packages/*/src/{old_file}"):
                target = Path(str(found).removesuffix(old_file) + new_file)
                target.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["git", "-C", str(root), "mv", str(found), str(target)], check=True)


def check_table(root: Path, renames: list[Rename]) -> list[str]:
    """Returns the problems: names that are renamed twice, or to a name that the repository contains."""
    problems = []
    texts = {name: (root / name).read_text() for name in list_files(root)}
    words = {name: Counter(re.findall(r"\w+", text)) for name, text in texts.items()}
    total: Counter[str] = sum(words.values(), Counter())
    by_old: dict[str, set[str]] = {}
    olds = {each.old for each in renames}
    for each in renames:
        by_old.setdefault(each.old, set()).add(each.new)
        if each.mode == "module":
            continue
        if not each.new.isidentifier():
            problems.append(f"{each.old}: {each.new} is not an identifier")
        if not total[each.old]:
            problems.append(f"{each.old}: does not occur")
        suited = [name for name in words if each.applies_to(name) and words[name][each.old]]
        taken = [name for name in suited if words[name][each.new]]
        if taken and each.new not in olds:
            problems.append(f"{each.old} -> {each.new}: both occur in {', '.join(taken[:6])}")
        defined = [
            name for name, text in texts.items()
            if name.endswith(".py") and "/tests/" not in name
            and words[name][each.new] and re.search(rf"(?:def|class) {each.new}\b", text)
        ]  # fmt: skip
        if defined and each.new not in olds:
            problems.append(f"{each.old} -> {each.new}: defined in {', '.join(defined[:6])}")
    problems += [
        f"{old}: renamed to {', '.join(sorted(news))} in one scope"
        for old, news in by_old.items()
        if len(news) > 1 and any(each.old == old and not each.scope for each in renames)
    ]
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    renames = read_table(given.table)
    if given.check:
        problems = check_table(given.root, renames)
        print("\n".join(problems))
        sys.exit(bool(problems))
    rename_tree(given.root, renames)


if __name__ == "__main__":
    main()
