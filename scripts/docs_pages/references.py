"""The pages that people read: their links, the code that they name, and the shell commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = {
    "plumage": "core",
    "plumage_router": "router",
    "plumage_engine": "engine",
    "plumage_operator": "operator",
    "plumage_cli": "cli",
    "plumage_bench": "bench",
}
_FOLDERS = "core|router|engine|operator|cli|bench|scripts|tests|charts|examples|images|crds|docs"
_PATH = re.compile(rf"(?<![\w/.-])(?:{_FOLDERS})/[\w./{{}},*-]*[\w}}*/]")
_SHORT_PATH = re.compile(r"(?<![\w/.:$~<>{}-])(?:[a-z]\w*/)+\w+\.py\b")  # from a folder of a package on
_METRIC = re.compile(rf"(?<![\w/.:-])(?!(?:{'|'.join(PACKAGES)})\b)plumage_[a-z0-9_]*[a-z0-9](?![\w*{{-]|/|\.(?!\s|$))")
_METRICS = (DOCS / "reference" / "metrics.md", ROOT / "operator/plumage_operator/external_metrics/pool_metrics.py")
_SERIES = re.compile(r"_(?:bucket|count|sum|total|created|info)$")
_MODULE = re.compile(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def pages() -> list[Path]:
    """Every page but the decisions, which record the tree of their day."""
    names = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "tests/cluster/README.md")
    own = [ROOT / name for name in names]
    found = [page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "decisions"]
    return [*own, ROOT / "charts" / "plumage" / "README.md", *found]


def dead_links(page: Path) -> list[str]:
    """Links of a page to files or headings that do not exist."""
    dead = []
    for target, anchor in _LINK.findall(_without_blocks(page.read_text())):
        path = page.parent / target if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in _anchors(path)):
            dead.append(f"{target}#{anchor}")
    return dead


def missing_paths(page: Path) -> list[str]:
    """Paths of this repository in code spans and blocks of a page that no file has."""
    named = {path for span in _code(page.read_text()) for path in _PATH.findall(span) if "NAME" not in path}
    return sorted(path for path in named if not all(any(ROOT.glob(one)) for one in _braces(path.rstrip("/"))))


def missing_short_paths(page: Path) -> list[str]:
    """Paths such as `proxy/attempt.py` in code spans of a page that no file of the repository ends with."""
    spans = re.findall(r"`([^`\n]+)`", _without_blocks(page.read_text()))
    named = {path for span in spans for path in _SHORT_PATH.findall(span) if not _PATH.match(path)}
    return sorted(path for path in named if not any(file.endswith(f"/{path}") for file in _files()))


def missing_metrics(page: Path) -> list[str]:
    """Names of metrics in code spans and blocks of a page that neither the reference has nor the external metrics."""
    named = {name for span in _code(page.read_text()) for name in _METRIC.findall(span)}
    known = {name for source in _METRICS for name in re.findall(r"plumage_\w+", source.read_text())}
    return sorted(name for name in named if name not in known and _SERIES.sub("", name) not in known)


def missing_modules(page: Path) -> list[str]:
    """Dotted names of our packages in code spans and blocks of a page that are neither a module nor a name in one."""
    named = {name for span in _code(page.read_text()) for name in _MODULE.findall(span)}
    return sorted(name for name in named if not _importable(name))


def commands(page: Path) -> list[list[str]]:
    """The words of each command in a page's console blocks and code spans, environment variables before it left out."""
    text = page.read_text()
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`((?:plumage|make|kubectl|helm) [^`\n]+)`", _without_blocks(text))
    lines = [line for block in blocks for line in _logical(block)] + spans
    return [words for line in lines for part in _parts(line) if (words := _words(part))]


@cache
def _files() -> tuple[str, ...]:
    """The Python files of the repository, from its root on."""
    folders = (ROOT / folder for folder in _FOLDERS.split("|"))
    return tuple(file.relative_to(ROOT).as_posix() for folder in folders for file in folder.rglob("*.py"))


@cache
def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _without_blocks(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def _without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def _code(text: str) -> list[str]:
    return re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL) + re.findall(
        r"`([^`\n]+)`", _without_blocks(text)
    )


def _braces(path: str) -> Iterator[str]:
    """`a/{b,c}` as a/b and a/c."""
    found = re.search(r"\{([^{}]*)\}", path)
    if found is None:
        yield path
        return
    for choice in found[1].split(","):
        yield from _braces(path[: found.start()] + choice + path[found.end() :])


def _importable(name: str) -> bool:
    top, *parts = name.split(".")
    place = ROOT / PACKAGES[top] / top
    for n, part in enumerate(parts):
        if (place / part).is_dir():
            place = place / part
            continue
        module = place / f"{part}.py"
        rest = parts[n + 1 :] if module.exists() else parts[n:]
        text = (module if module.exists() else place / "__init__.py").read_text()
        return all(re.search(rf"\b{re.escape(one)}\b", text) for one in rest)
    return True


def _logical(block: str) -> Iterator[str]:
    """Commands of a console block. Where lines begin with `$ `, all others are output."""
    prompts, held = "$ " in {line[:2] for line in block.splitlines()}, ""
    for line in block.splitlines():
        if not held and prompts and not line.startswith("$ "):
            continue
        held += line.removeprefix("$ ") if not held else f"\n{line}"
        if held.endswith("\\") or not _closed(held):
            continue
        yield held
        held = ""


def _closed(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def _parts(line: str) -> Iterator[str]:
    """A command, and those that it substitutes with $(…) or joins with &&."""
    line = line.replace("\\\n", " ")
    inner = re.findall(r"\$\(([^()]*)\)", line)
    yield from inner
    for one in inner:
        line = line.replace(f"$({one})", "VALUE")
    yield from re.split(r" && | \| ", line)


def _words(part: str) -> list[str]:
    try:
        words = shlex.split(part, comments=True)
    except ValueError:  # a span of prose, or part of a quoted script
        return []
    while words and re.fullmatch(r"\w+=.*", words[0], re.DOTALL):
        words = words[1:]
    return words
