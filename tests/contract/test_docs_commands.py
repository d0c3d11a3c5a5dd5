"""The shell commands in the pages: their programs, subcommands, flags, targets, chart values and files exist.

Sessions that a pool on one machine can answer run in tests/e2e/test_readme.py. Commands for a cluster are only parsed
here.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from cluster.programs import API, NODES, found
from docs_pages.references import ROOT, commands, pages
from support.needs import missing

from plumage_cli.main import app

PLACEHOLDER = re.compile(r"[A-Z][A-Z_-]+\d?(/.*)?")
ELSEWHERE = {
    "envoy",
    "curl",
    "printf",
    "pip",
    "vllm",
    "python",
    "sleep",
    "source",
    "seq",
    "openssl",
    "base64",
    "tr",
    "grep",
    "for",
    "until",
    "kill",
    "awk",
    "eval",
}


def _all(program: str) -> list[Any]:
    """Every command of a program, with its page."""
    return [
        pytest.param(words[1:], id=f"{page.relative_to(ROOT)}: {' '.join(words)[:60]}")
        for page in pages()
        for words in commands(page)
        if words[0] == program
    ]


@pytest.mark.parametrize("words", _all("plumage") + _all("kubectl-plumage"))
def test_plumage_has_the_subcommand_and_its_flags(words: list[str]) -> None:
    _check_plumage(words)


@pytest.mark.parametrize("words", _all("make"))
def test_make_has_the_target_and_its_settings(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    settings = makefile + "".join(path.read_text() for path in (ROOT / "scripts").glob("*.sh"))
    for word in words:
        name, equals, _ = word.partition("=")
        if equals:
            assert re.search(rf"\b{name}\b", settings), f"no setting {name}"
        elif not name.startswith("-"):
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), f"no target {name}"


@pytest.mark.parametrize("words", _all("helm"))
def test_helm_has_the_subcommand_its_flags_and_the_chart_values(words: list[str]) -> None:
    _check_flags("helm", words[:1], words[1:])
    values = yaml.safe_load((ROOT / "charts" / "plumage" / "values.yaml").read_text())
    for flag, value in itertools.pairwise(words):
        if flag == "--set":
            _check_value(values, value.partition("=")[0])
        if value.startswith(("charts/", "crds/")):
            assert (ROOT / value).exists()


@pytest.mark.parametrize("words", _all("kubectl"))
def test_kubectl_has_the_subcommand_and_its_flags(words: list[str]) -> None:
    words = list(words)
    while words[0] in ("-n", "--namespace"):
        words = words[2:]
    if words[0] == "plumage":
        _check_plumage(words[1:])
        return
    verbs = words[: {"rollout": 2, "create": 3 if "secret" in words else 2}.get(words[0], 1)]
    _check_flags("kubectl", verbs, words[len(verbs) :])
    for word in words:
        if word.startswith(("examples/", "crds/")):
            assert (ROOT / word).exists()


def test_every_program_in_a_page_is_known() -> None:
    programs = {words[0] for page in pages() for words in commands(page)}
    checked = {"plumage", "make", "helm", "kubectl"}
    assert {name for name in programs - checked - ELSEWHERE if "/" not in name} == set()


@pytest.mark.parametrize("page", ["README.md", "examples/README.md", "docs/tutorial/laptop.md"])
def test_plumage_is_a_command_once_the_environment_is_active(page: str) -> None:
    text = (ROOT / page).read_text()
    assert ".venv/bin/plumage" not in text
    assert "`make setup`" in text
    assert "`source .venv/bin/activate`" in text
    if page == "README.md":
        assert text.index("source .venv/bin/activate") < min(map(text.index, ("`plumage up", "$ plumage ")))


def test_wrong_command_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ plumage statsu --json\nsome output\n$ SIZE=$(plumage scale 5 --force)\n```\n")
    assert commands(page) == [["plumage", "statsu", "--json"], ["plumage", "scale", "5", "--force"]]
    for words in commands(page):
        with pytest.raises(AssertionError):
            _check_plumage(words[1:])


def _check_plumage(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    words = [word for word in words if not PLACEHOLDER.fullmatch(word)]
    while words and not words[0].startswith("-") and hasattr(command, "get_command"):
        name, *words = words
        found_one = command.get_command(None, name)
        assert found_one is not None, f"no command {name}"
        command = found_one
    flags = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)} | {"--help"}
    asked = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert asked <= flags, f"no flags {asked - flags}"
    for word in words:
        if word.startswith("examples/") and "*" not in word:
            assert (ROOT / word).exists(), word


def _check_flags(program: str, verbs: list[str], words: list[str]) -> None:
    flags = _flags(program, tuple(verbs))
    asked = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    assert asked <= flags, f"no flags {sorted(asked - flags)}"


@cache
def _flags(program: str, verbs: tuple[str, ...]) -> frozenset[str]:
    """The flags in the program's help for a subcommand."""
    path = next(found(one) for one in (*API, *NODES) if one.name == program)
    if path is None:
        missing(f"a {program} program", "make cluster-programs")
    asked = [[*verbs, "--help"], ["options"]] if program == "kubectl" else [[*verbs, "--help"]]
    helped = ""
    for arguments in asked:
        run = subprocess.run([str(path), *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 0, run.stderr
        helped += run.stdout
    assert f"{program} {verbs[0]}" in helped
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", helped))


def _check_value(values: Any, path: str) -> None:
    for name in path.split("."):
        assert name in values, f"the chart has no value {path}"
        values = values[name]
