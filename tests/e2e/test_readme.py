"""The sessions of README and tutorial with a pool: their commands run as written, and print what they show. Both use
one pool: the tutorial comes last, since it changes the pool's size."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_pages.references import ROOT
from support.needs import missing
from support.pool import Pool, ready_pool

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]
PAGES = ("README.md", "docs/tutorial/laptop.md")
REQUEST = re.compile(r"\b[0-9a-f]{24}\b")
VARIABLE = re.compile(r"\w+=")  # a command that sets one


def session(page: str) -> list[tuple[str, str]]:
    """The commands of a page's blocks with prompts, each with what is shown below it."""
    blocks = re.findall(r"```console\n(\$ .*?)```", (ROOT / page).read_text(), re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*\n)(.*)", part, re.DOTALL).groups() for part in parts]  # type: ignore[union-attr, misc]


def shape(text: str) -> str:
    """What does not change from run to run: no ids, numbers or widths, and any replica may be the chosen one."""
    text = REQUEST.sub("ID", text.replace("→ chat", "chat").replace("\r", ""))
    return re.sub(r" +", " ", re.sub(r"[━─]+", "━", re.sub(r"\d[\d.,]*", "N", text))).strip()


@pytest.fixture(scope="module")
def pool(runtime: Path) -> Iterator[Pool]:
    with ready_pool(runtime, 4) as pool:
        yield pool
        assert pool.stop() == 0, pool.output


@pytest.mark.parametrize("page", PAGES)
def test_session_prints_what_the_page_shows(page: str, pool: Pool) -> None:
    if shutil.which("curl") is None:
        missing("curl", "install it with the system's package manager")
    written: list[str] = []
    real: list[str] = []
    before = f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n"  # as `activate` does
    for command, shown in session(page):
        script = command.replace("http://127.0.0.1:8000", pool.url)
        for there, here in zip(written, real, strict=True):
            script = script.replace(there, here)
        done = subprocess.run(
            ["bash", "-c", before + script], env=pool.environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert shape(done.stdout) == shape(shown)
        if VARIABLE.match(command):
            before += script
        elif not written and shown:
            written, real = REQUEST.findall(shown), REQUEST.findall(done.stdout)
    assert real
