"""Pages of the site that are not Markdown files of `docs/`: API, packages, notebooks, linked sources.

MkDocs calls this file: `hooks` in `mkdocs.yml`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import NOTEBOOKS, to_markdown

ROOT = Path(__file__).parents[2]
# The target of a Markdown link that is a path, without what follows `#`.
TARGET = re.compile(r"(?<=\]\()(?!\w+:|#)[^)#\s]+")

# Each page contains the public names of these modules: those of `__all__`, or of the stub with the list.
MODULES = {
    "sparring": ("sparring.engine.table_container",),
    "sparring.contracts": (),
    "sparring.adapter": (),
    "sparring.errors": (),
    "sparring_cli": (),
    "sparring_torch": (),
    "sparring_tf": (),
    "sparring_jax": (),
    "sparring_tiered": (),
    "sparring_hkv": (),
    "sparring_rocksdb": (),
    "sparring_redis": (),
    "sparring_nccl": (),
    "sparring_train": ("sparring_train.hookspecs",),
    "sparring_testing": (),
    "sparring_packed": (),
    "sparring_serve": (),
    "sparring_plan": ("sparring_plan.simulation.model", "sparring_plan.simulation.replay"),
}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the API reference, the pages of packages, and each file that a page links to."""
    for package, modules in MODULES.items():
        page = f"# {package}\n\n::: {package}\n{members_of(package)}"
        page += "".join(f"\n## {module}\n\n::: {module}\n" for module in modules)
        files.append(File.generated(config, f"api/{package}.md", content=page))
    for path in NOTEBOOKS:
        name = in_site(str(path.relative_to(ROOT)))
        files.append(File.generated(config, name, content=to_markdown(path.read_text())))
    for pattern in ("packages/*/README.md", "packages/*/CHANGELOG.md"):
        for path in sorted(ROOT.glob(pattern)):
            name = str(path.relative_to(ROOT))
            files.append(File.generated(config, name, content=path.read_text()))
    for file in list(files.documentation_pages()):
        for target in TARGET.findall(file.content_string):
            source = source_of(file.src_uri, target)
            if (ROOT / source).is_file() and files.get_file_from_path(in_site(source)) is None:
                text = (ROOT / source).read_bytes()
                files.append(File.generated(config, in_site(source), content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points each link that leaves its folder of the checkout to the same file in the site."""
    del config, files
    place = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        target = in_site(source_of(place, match[0]))
        return posixpath.relpath(target, posixpath.dirname(place) or ".")

    return TARGET.sub(moved, markdown)


def members_of(package: str) -> str:
    """Returns the options that select the names of a stub, for packages that have one."""
    stub = ROOT / "packages/core/src" / package.replace(".", "/") / "__init__.pyi"
    if not stub.is_file():
        return ""
    names = sorted(re.findall(r" as (\w+)$", stub.read_text(), re.MULTILINE))
    return f"    options:\n      members: [{', '.join(names)}]\n"


def source_of(page: str, target: str) -> str:
    """Returns the path in the checkout of what a page links to."""
    place = page if page.startswith("packages/") else f"docs/{page}"
    source = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
    readme = f"{source}/README.md"
    return readme if (ROOT / readme).is_file() else source


def in_site(source: str) -> str:
    """Returns where a file of the checkout is in the site. Sources are shown as text."""
    source = re.sub(r"\.ipynb$", ".md", source)
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    return source if source.endswith(".md") else f"{source}.txt"
