"""The commands of the README are those of the Makefile."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.needs import missing

ROOT = Path(__file__).parents[3]


def planned(*words: str) -> str:
    """The commands that make would run, with the set-up done."""
    if shutil.which("make") is None:
        missing("the make command", "apt-get install make")
    command = ["make", "--dry-run", "--old-file=setup", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(("arguments", "keep"), [((), "0"), (("KEEP=1",), "1")])
def test_make_demo_passes_keep_on(arguments: tuple[str, ...], keep: str) -> None:
    assert f'KEEP="{keep}" .venv/bin/plumage demo\n' in planned("demo", *arguments)


def test_make_bench_passes_name_and_arguments_on() -> None:
    assert ".venv/bin/plumage bench mrc --quick --seed 3\n" in planned("bench", "NAME=mrc", "ARGS=--quick --seed 3")


def test_make_test_quick_runs_its_script() -> None:
    assert "bash scripts/test.sh --quick\n" in planned("test-quick")


def test_processes_of_make_write_bytecode() -> None:
    """With any setting of the shell: otherwise each process would compile all its imports."""
    if shutil.which("make") is None:
        missing("the make command", "apt-get install make")
    makefile = "include Makefile\nshow-environment:\n\t@env\n"
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    command = ["make", "--silent", "--file=-", "show-environment"]
    run = subprocess.run(
        command, cwd=ROOT, input=makefile, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    names = {line.partition("=")[0] for line in run.stdout.splitlines()}
    assert "PYTHONUNBUFFERED" in names
    assert "PYTHONDONTWRITEBYTECODE" not in names
