"""Refuse the private words that docs/glossary.md replaced: `python scripts/check_words.py`, which `make lint` runs.

The glossary is the only list: the column *instead of*, and the words in backquotes in its last section. `EXCEPTIONS`
names those of the column that have an honest other meaning. Names of code, files and folders are read too, split at
`_` and at capitals. A phrase is found across the end of a line. Decisions and kept evidence are records of their time,
and are left out. `check_commits.py` reads commit messages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = "docs/glossary.md"
HEADING = "## Words that lint refuses"
PLACES = (
    "core",
    "router",
    "engine",
    "operator",
    "cli",
    "bench",
    "charts",
    "crds",
    "docs",
    "examples",
    "images",
    "scripts",
    "tests",
    ".ci",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "mkdocs.yml",
    "pyproject.toml",
    ".dockerignore",
    ".gitignore",
)
LEFT_OUT = (
    "docs/decisions",
    "docs/evidence",
    "docs/evidence.md",
    "tests/contract/crds/before",  # definitions of an older release
    "core/plumage/models/tiny_chat/tokenizer.json",  # a generated vocabulary
    GLOSSARY,
)
EXCEPTIONS: dict[str, str] = {
    "backend": "attention and executor backends are vLLM's terms",
    "below": "ordinary English for a lower place or number",
    "contender": "a policy that a bench compares, ours among them; a baseline is never ours",
    "course": "of course",
    "exchange": "both sides send and receive, as routers do with learned state",
    "fact": "what is known of a text or a node, as in `NodeFacts`",
    "flock": "the system call, and the title of FEATHER's paper",
    "followed": "past tense of follow, for steps in an order",
    "front": "the first place of a queue",
    "gateway": "the term for an InferenceGateway; not refused for that",
    "goes": "ordinary English for a request or a message on its way",
    "guess": "a start value before the first measurement; an estimator gives a prediction",
    "held": "past tense of hold",
    "hold": "a replica holds chunks, a process holds a lock",
    "holder": "holderIdentity of a Kubernetes Lease",
    "lanes": "groups of tests that run beside each other",
    "leaves": "the nodes of a tree without children",
    "life": "the time from an object's creation to its end",
    "look": "ordinary English",
    "member": "a member of a set, as in `membership`",
    "neighbour": "two elements next to each other in an order",
    "newer": "the comparative of new, as for schemas",
    "part": "ordinary English; components have their own term",
    "parts": "ordinary English; components have their own term",
    "peer": "the term for another replica; refused for a baseline only",
    "probe": "liveness and readiness probes are Kubernetes' term",
    "rounds": "repetitions of a measurement, turns of a conversation, and `round` of numbers",
    "say": "ordinary English",
    "site": "the documentation site, `TCPSite` of aiohttp, and Python's site-packages",
    "sweep": "a range of parameters, and the removal of what expired; a relist has its own term",
    "verdict": "the result of a claim, and of a check of `plumage doctor`",
    "victims": "the blocks that an eviction chooses, in papers and vLLM",
    "why": "ordinary English",
    "word": "a word of text",
    "worker": "vLLM's worker process, and those of benches",
}
"""Words of the column *instead of* that lint allows, each with the reason."""
DECISION = re.compile(r"decisions/[\w-]+\.md")  # file names of older decisions
ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])")
BREAK = r"""(?:[^\S\n]*["']?[^\S\n]*\n[^\S\n]*(?:(?:[rf]?["']|#|//|>|\*)[^\S\n]*)?|[^\S\n]+)"""
"""Between two words of a phrase: spaces, or one end of a line with what begins the next line of a comment or string."""
SUFFIXES = frozenset(
    (
        ".c", ".Dockerfile", ".go", ".jinja", ".json", ".md", ".proto", ".py", ".sh", ".toml", ".tpl", ".txt", ".yaml",
        ".yml", "",
    )
)  # fmt: skip
"""The empty one is that of Makefile, Dockerfile, `.ci/run` and lists of ignored files."""


def words(root: Path = ROOT) -> list[str]:
    """The refused words. Raises ValueError where the glossary has none, or lacks a word of `EXCEPTIONS`."""
    table, _, section = (root / GLOSSARY).read_text(encoding="utf-8").partition(HEADING)
    named = [word for word in re.findall(r"`([^`]+)`", section) if "/" not in word and not word.startswith("make ")]
    if not named:
        raise ValueError(f"{GLOSSARY} lists no words under {HEADING!r}")
    replaced = [word.strip() for cell in ROW.findall(table) for word in re.sub(r"\(.*?\)", "", cell).lower().split(",")]
    if unknown := sorted(EXCEPTIONS.keys() - set(replaced)):
        raise ValueError(f"EXCEPTIONS has words that {GLOSSARY} does not replace: {', '.join(unknown)}")
    return sorted({*named, *replaced} - EXCEPTIONS.keys() - {"–", "instead of", "---"})


def files(root: Path = ROOT) -> Iterator[Path]:
    """Every text file of `PLACES` but for those that are left out."""
    for place in PLACES:
        path = root / place
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = file.relative_to(root).as_posix()
            if file.suffix in SUFFIXES and file.is_file() and not name.startswith(LEFT_OUT):
                yield file


def refused_words(root: Path = ROOT) -> re.Pattern[str]:
    """Finds the refused words in a text that went through `split`."""
    phrases = "|".join(BREAK.join(map(re.escape, word.split())) + "s?" for word in words(root))
    return re.compile(rf"\b(?:{phrases})\b", re.IGNORECASE)


def findings(root: Path = ROOT) -> list[str]:
    """`file:line: word` for each refused word, and `path: word in its name` for files and folders."""
    refused = refused_words(root)
    found, seen = [], set()
    for file in files(root):
        for path in (file, *file.parents):
            if path == root or path in seen:
                break
            seen.add(path)
            found += [
                f"{path.relative_to(root)}: {match[0]} in its name" for match in refused.finditer(split(path.name))
            ]
        text = split(DECISION.sub("", file.read_text(encoding="utf-8")))
        for match in refused.finditer(text):
            number = text.count("\n", 0, match.start()) + 1
            found.append(f"{file.relative_to(root)}:{number}: {re.sub(BREAK, ' ', match[0])}")
    return found


def split(text: str) -> str:
    """A text with the parts of each name as words: `PoolView` and `pool_view` as two words. Keeps the lines."""
    return PARTS.sub(" ", text).replace("_", " ")


if __name__ == "__main__":
    wrong = findings()
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        sys.exit(f"{len(wrong)} private words: use the glossary's terms instead ({GLOSSARY})")
