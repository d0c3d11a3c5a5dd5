"""What the README tells people to type is there; its session with a pool is run in tests/e2e."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plumage_cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_every_command_and_target_exists() -> None:
    commands = re.findall(r"(?:^|[`/ ])plumage ([a-z]+)", "\n".join(re.findall(r"`plumage .*?`|^\$ .*$", README, re.M)))
    assert commands
    assert set(commands) <= set(COMMANDS)
    targets = re.findall(r"(?:^|`)make ([a-z]+)", README, re.M)
    assert {"demo", "test"} <= set(targets) <= set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("page", ["README.md", "examples/README.md"])
def test_plumage_is_a_command_once_the_environment_is_active(page: str) -> None:
    text = (ROOT / page).read_text()
    assert ".venv/bin/plumage" not in text
    assert "`make setup`" in text
    assert "`source .venv/bin/activate`" in text
    if page == "README.md":
        assert text.index("source .venv/bin/activate") < min(map(text.index, ("`plumage up", "$ plumage ")))


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert links
