"""The commands of the README are what the Makefile runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.needs import missing

ROOT = Path(__file__).parents[3]


def planned(*words: str) -> str:
    """What make would run, the set-up taken for done."""
    if shutil.which("make") is None:
        missing("the make command", "apt-get install make")
    command = ["make", "--dry-run", "--old-file=setup", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(("words", "keep"), [((), "0"), (("KEEP=1",), "1")])
def test_make_demo_hands_keep_on(words: tuple[str, ...], keep: str) -> None:
    assert f'KEEP="{keep}" .venv/bin/plumage demo\n' in planned("demo", *words)


def test_make_bench_hands_on_name_and_arguments() -> None:
    assert ".venv/bin/plumage bench mrc --quick --seed 3\n" in planned("bench", "NAME=mrc", "ARGS=--quick --seed 3")


def test_what_make_starts_keeps_its_bytecode() -> None:
    """Whatever the shell says: else each process compiles all that it imports."""
    if shutil.which("make") is None:
        missing("the make command", "apt-get install make")
    told = "include Makefile\ntold:\n\t@env\n"
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    command = ["make", "--silent", "--file=-", "told"]
    run = subprocess.run(
        command, cwd=ROOT, input=told, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    names = {line.partition("=")[0] for line in run.stdout.splitlines()}
    assert "PYTHONUNBUFFERED" in names
    assert "PYTHONDONTWRITEBYTECODE" not in names
