"""The generated pages of docs/ are current, and short pages stay short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_docs.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("page", "lines"),
    [("README.md", 120), ("docs/known-limits.md", 80), ("CHANGELOG.md", 40), ("docs/glossary.md", 100)],
)
def test_page_stays_within_its_lines(page: str, lines: int) -> None:
    text = (ROOT / page).read_text().splitlines()
    assert len(text) <= lines
    assert [line for line in text if len(line) > 160] == []


def test_glossary_has_each_term_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    terms = [term for term, _, _ in rows if term not in ("term", "---")]
    assert len(terms) >= 60
    assert sorted({*terms}) == sorted(terms)
