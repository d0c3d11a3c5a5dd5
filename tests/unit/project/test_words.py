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


@pytest.fixture
def tree(check_words: ModuleType, tmp_path: Path) -> Path:
    """An empty repository with the glossary."""
    for name in check_words.PLACES:
        if (ROOT / name).is_file():
            (tmp_path / name).write_text("untold\n")
        else:
            (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "docs" / "glossary.md").write_text((ROOT / "docs" / "glossary.md").read_text())
    return tmp_path


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("A pool.\nWhat the router is To{}ld.\n", 2, "To{}ld"),
        ("def to{}ld_engine() -> None: ...\n", 1, "to{}ld"),
        ("class GatewaySce{}ne: ...\n", 1, "Sc{}ene"),
        ("class HTTPSce{}ne: ...\n", 1, "Sc{}ene"),
        ("pool_sce{}ne2 = 1\n", 1, "sc{}ene"),
        ('NAME = "plumage_router_lap{}sed_total"\n', 1, "la{}psed"),
        ("# It was brou{}ght\n# about by a scale-up.\n", 1, "br{}ought about"),
        ('"""It was brou{}ght\n    about by a scale-up."""\n', 1, "br{}ought about"),
        ('TEXT = (\n    "It was brou{}ght "\n    f"about by a scale-up."\n)\n', 2, "br{}ought about"),
        ("new{}comers = []\n", 1, "ne{}wcomers"),
        ("# The pri{}ce is de{}ar.\n", 1, "de{}ar"),
        ("def mute() -> str: return 'tea{}ch'\n", 1, "te{}ach"),
    ],
)
def test_planted_word_is_found_with_its_line(
    check_words: ModuleType, tree: Path, text: str, line: int, found: str
) -> None:
    """`{}` keeps the words out of this file, which is checked too."""
    (tree / "core" / "planted.py").write_text(text.replace("{}", ""))
    assert check_words.findings(tree) == [f"core/planted.py:{line}: {found.replace('{}', '')}"]


@pytest.mark.parametrize(
    "name",
    [
        ".ci/run",
        "Makefile",
        "pyproject.toml",
        "mkdocs.yml",
        ".dockerignore",
        "bench/native/engine.c",
        "core/chat_template.jinja",
        "images/engine/Dockerfile",
        "images/engine/cpu.Dockerfile",
        "tests/cluster/go/main.go",
        "tests/support/ext_proc.proto",
    ],
)
def test_planted_word_is_found_in_files_of_each_kind(check_words: ModuleType, tree: Path, name: str) -> None:
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text("a = 1\n# What the router is to{}ld.\n".format(""))
    assert check_words.findings(tree) == [f"{name}:2: {'to{}ld'.format('')}"]


def test_planted_names_of_files_and_folders_are_found(check_words: ModuleType, tree: Path) -> None:
    word = "sce" + "ne"
    (tree / "core" / f"pool_{word}").mkdir()
    (tree / "core" / f"pool_{word}" / "one.py").write_text("")
    (tree / "core" / f"pool_{word}" / f"{word}.py").write_text("")
    assert check_words.findings(tree) == [
        f"core/pool_{word}: {word} in its name",
        f"core/pool_{word}/{word}.py: {word} in its name",
    ]


def test_words_of_a_phrase_apart_are_no_finding(check_words: ModuleType, tree: Path) -> None:
    (tree / "core" / "planted.py").write_text("# What it brought.\n\n# about = 1\n# Where it brought: about.\n")
    assert check_words.findings(tree) == []


def test_words_come_from_the_column_of_the_glossary(check_words: ModuleType, tree: Path) -> None:
    glossary = tree / "docs" / "glossary.md"
    glossary.write_text(
        glossary.read_text().replace("## Fleet", "| pool | a fleet | flotilla, group of (ours) |\n\n## Fleet")
    )
    assert {"flotilla", "group of"} <= set(check_words.words(tree))
    assert "member" not in check_words.words(tree), "an exception"


def test_each_exception_has_a_reason_and_a_row(check_words: ModuleType, tree: Path) -> None:
    assert [word for word, reason in check_words.EXCEPTIONS.items() if len(reason) < 8] == []
    check_words.EXCEPTIONS["flotilla"] = "no row of the glossary has it"
    with pytest.raises(ValueError, match="does not replace: flotilla"):
        check_words.words(tree)


def test_glossary_without_words_is_an_error(check_words: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text("# Glossary\n")
    with pytest.raises(ValueError, match="lists no words"):
        check_words.words(tmp_path)
