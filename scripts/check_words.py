"""Refuse the private words that docs/glossary.md replaced: `python scripts/check_words.py`, which `make lint` runs.

The glossary's last section has the words, in backquotes. Decisions and kept evidence are records of their time and are
left out.
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
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)
LEFT_OUT = ("docs/decisions", "docs/evidence", "docs/evidence.md", GLOSSARY)
DECISION = re.compile(r"decisions/[\w-]+\.md")  # file names of older decisions
SUFFIXES = frozenset((".py", ".md", ".yaml", ".yml", ".sh", ".json", ".txt", ".tpl"))


def words(root: Path = ROOT) -> list[str]:
    """The refused words. Raises ValueError where the glossary has none."""
    _, _, section = (root / GLOSSARY).read_text(encoding="utf-8").partition(HEADING)
    found = [word for word in re.findall(r"`([^`]+)`", section) if "/" not in word and not word.startswith("make ")]
    if not found:
        raise ValueError(f"{GLOSSARY} lists no words under {HEADING!r}")
    return found


def files(root: Path = ROOT) -> Iterator[Path]:
    """Every text file of `PLACES` but for those that are left out."""
    for place in PLACES:
        path = root / place
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = file.relative_to(root).as_posix()
            if file.suffix in SUFFIXES and file.is_file() and not name.startswith(LEFT_OUT):
                yield file


def findings(root: Path = ROOT) -> list[str]:
    """`file:line: word` for each refused word."""
    refused = re.compile(rf"\b(?:{'|'.join(re.escape(word) for word in words(root))})\b", re.IGNORECASE)
    found = []
    for file in files(root):
        for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            line = DECISION.sub("", text)
            found += [f"{file.relative_to(root)}:{number}: {match[0]}" for match in refused.finditer(line)]
    return found


if __name__ == "__main__":
    wrong = findings()
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        sys.exit(f"{len(wrong)} private words: use the glossary's terms instead ({GLOSSARY})")
