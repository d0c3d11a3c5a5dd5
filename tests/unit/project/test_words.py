"""`make lint` refuses the words that the glossary replaced."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def check_words() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_words", ROOT / "scripts" / "check_words.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_repository_uses_no_refused_word(check_words: ModuleType) -> None:
    assert check_words.findings() == []


def test_planted_word_is_found_with_its_line(check_words: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text((ROOT / "docs" / "glossary.md").read_text())
    planted = "To" + "ld"  # in two pieces, since this file is checked too
    (tmp_path / "README.md").write_text(f"A pool.\nWhat the router is {planted}.\n")
    for name in check_words.PLACES:
        if "." not in name:
            (tmp_path / name).mkdir(parents=True, exist_ok=True)
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / name).write_text("untold\n")
    assert check_words.findings(tmp_path) == [f"README.md:2: {planted}"]


def test_glossary_without_words_is_an_error(check_words: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text("# Glossary\n")
    with pytest.raises(ValueError, match="lists no words"):
        check_words.words(tmp_path)
