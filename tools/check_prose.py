"""Checks that the prose of the repository is ordinary English: it counts habits of a private dialect.

    python tools/check_prose.py             # the rate of each habit, and whether it is within its budget
    python tools/check_prose.py what        # the lines of the habits whose names contain the word

Three kinds of prose are measured separately: Markdown pages; docstrings and comments; and string
literals of at least four words (errors, log messages, help texts). A budget is the maximum number of
occurrences per 100,000 words. It is the rate at which well-edited projects of the field use the same
words. Budgets may only decrease.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

HABITS: dict[str, tuple[str, float, str]] = {
    "what": (r"\bwhat\b(?! (?:is|are|does|do|if)\b[^.]*\?)", 65, "the noun that is meant"),
    "where": (
        r"(?:(?:^|[.;:(|] )Where|[;:(] where|, where (?!`|\w\b|the |each |every |all |we |you |it ))\b",
        35, "if, when",
    ),
    "fronted": (r"(?:^|[.:] )(?:Of|That|Those|Whose|Who|Which) [a-z]", 21, "subject, verb, object"),
    "as": (
        r", as (?!well|of|long|soon|much|many|the name)[a-z]", 95, "such as, for example, because"
    ),
    "say": (r"\b(?:say|says|said|saying)\b", 17, "specifies, sets, reports, describes"),
    "ask": (r"\b(?:ask|asks|asked|asking)\b", 21, "requests, queries, calls"),
    "tell": (r"\b(?:tell|tells|told|telling)\b", 21, "reports, notifies, logs, warns"),
    "that of": (r"\b(?:that|those) of\b", 29, "repeat the noun"),
    "is no": (
        r"(?<![Tt]here )\b(?:is|are|was|were) no\b"
        r"(?!\s+(?:longer|larger|greater|more|less|smaller|fewer)\b|$)",
        33, "is not a, there is no",
    ),
    "of its own": (r"\bof (?:its|their|his|our|your|one's) own\b", 13, "separate, its"),
    "go on": (r"\b(?:go|goes|going|went|gone) on\b", 9, "continues, resumes"),
    "a row": (
        r"\b(?:ns|us|ms|µs|bytes?|[KMG]i?B|[KMGT]B/s|ids|keys|calls|lines?|rows?|times) an? "
        r"(?:id|row|key|step|rank|table|second|minute|element|line|call|batch|bag|sample|thread|message)\b",
        11, "per row, per second",
    ),
    "mend": (r"\bmend(?:s|ed|ing)?\b", 5, "fixes, repairs"),
    "lie": (r"\b(?:lie|lies|lay|lying)\b", 9, "is stored, is located"),
    "stand": (r"\b(?:stand|stands|stood|standing)\b(?!-?(?:alone|ard|by))", 17, "is, represents"),
    "beside": (
        r"\b(?:amid|beside|anew|alike|whoever|nobody|whichever)\b", 13, "next to, again, equal, any"
    ),
    "by way of": (r"\b(?:by way of|save for|but for|as it were|so to speak)\b", 7, "via, except"),
    "whatever": (r"\b(?:no one|whatever)\b", 17, "no caller, any"),
    "refuse": (
        r"(?<!onnection )(?<!onnections )(?<!connection is )(?<!connection was )"
        r"\brefus(?:e|es|ed|al|als|ing)\b(?! connections?\b)",
        17, "raises, rejects",
    ),
    "into being": (
        r"\b(?:into being|is wanting|comes? about|comes? to light)\b", 11, "is created, is missing"
    ),
    "bear": (r"\b(?:bear|bears|borne|dear|dearer)\b(?! in mind)", 9, "supports, expensive"),
    "under way": (r"\bunder way\b", 7, "in progress"),
    "room, floor, face": (
        r"\b(?:rooms|(?<!make )(?<!is )(?<!no )(?<!any )(?<!some )(?<!have )(?<!need )"
        r"room(?! (?:for|in|left)\b)|floors?(?! division)|faces?(?! value))\b",
        17, "capacity, layer, public module",
    ),
    "hold": (r"\b(?:hold|holds|held)\b", 95, "contains, stores, keeps"),
    "so it": (r"(?:^|[.;] )So (?:it|they|a|an|the|no|each|that)\b", 21, "therefore, because"),
    "alone": (r"\balone\b", 21, "only"),
    "lack": (r"\black(?:s|ed|ing)?\b", 25, "has no, is missing"),
    "most, least": (
        r"(?:\bthe most|^Most) (?:bytes|rows|ids|keys|chunks|calls|tables|seconds|lines|threads|ranks)\b"
        r"(?! (?:are|have|do)\b)",
        13, "maximum, at most",
    ),
}  # fmt: skip
"""Name: the expression, its budget per 100,000 words, and what to write instead."""

_EXPRESSIONS = {name: re.compile(pattern, re.M) for name, (pattern, _, _) in HABITS.items()}
_EXCLUDED = re.compile(r"(^|/)(tests?|fixtures|third_party)/|LICENSE")
_CXX = {".cc", ".h", ".cu", ".cuh", ".cpp"}


def main(words: list[str]) -> int:
    texts: dict[str, list[tuple[str, str]]] = {"pages": [], "code": [], "messages": []}
    for path in _files():
        for kind, text in _prose(ROOT / path):
            texts[kind].append((path, re.sub(r"`[^`]*`", "`x`", text)))
    if words:
        for kind, parts in texts.items():
            for path, text in parts:
                for name, expression in _EXPRESSIONS.items():
                    if any(word in name for word in words):
                        for line in text.splitlines():
                            if expression.search(line):
                                print(f"{path}: {name} ({kind}): {line.strip()}")
        return 0
    findings = [finding for kind, parts in texts.items() for finding in _over_budget(kind, parts)]
    print(*findings, f"{len(findings)} habits above their budgets", sep="\n")
    return 1 if findings else 0


def _over_budget(kind: str, parts: list[tuple[str, str]]) -> Iterator[str]:
    number = sum(len(re.findall(r"[A-Za-z']+", text)) for _, text in parts)
    for name, (_, budget, instead) in HABITS.items():
        counts = {path: len(_EXPRESSIONS[name].findall(text)) for path, text in parts}
        rate = sum(counts.values()) * 1e5 / max(number, 1)
        if rate > budget:
            files = sorted(counts, key=lambda path: -counts[path])[:5]
            yield (
                f"{kind}: {name!r} occurs {rate:.0f} times per 100,000 words, budget {budget}; "
                f"write {instead!r}; most often in {', '.join(files)}"
            )


def _files() -> Iterator[str]:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    for path in listed.stdout.split("\0"):
        if path and not _EXCLUDED.search(path) and (ROOT / path).is_file():
            yield path


def _prose(path: Path) -> Iterator[tuple[str, str]]:
    """The kinds of prose of a file, and their texts, without code."""
    if path.suffix == ".md":
        text = re.sub(r"^(```|~~~).*?^\1\s*$", " ", path.read_text(), flags=re.S | re.M)
        yield "pages", re.sub(r"\]\([^)]*\)", "]", text)
    elif path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        yield (
            "pages",
            "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown"),
        )
    elif path.suffix == ".py":
        source = path.read_text()
        tree = ast.parse(source)
        yield "code", "\n".join([*_docstrings(tree), *_comments(source)])
        yield "messages", "\n".join(_messages(tree))
    elif path.suffix in _CXX:
        found = re.findall(r"//[/!]?\s?(.*)|/\*(.*?)\*/", path.read_text())
        yield "code", "\n".join(line or block for line, block in found)


def _docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.value


def _comments(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(
            ("# noqa", "# type", "#!", "# fmt")
        ):
            yield token.string.lstrip("# ")


def _messages(tree: ast.AST) -> Iterator[str]:
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    excluded = docstrings | {id(part) for node in joined for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "`x`" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in excluded
        ):
            text = node.value
        else:
            continue
        if len(re.findall(r"[a-z]{2,} ", text)) >= 4:
            yield text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
