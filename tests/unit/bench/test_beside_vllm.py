"""A benchmark that needs vLLM goes where it is, or says how to get it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from plumage_bench import beside_vllm

pytestmark = pytest.mark.skipif(find_spec("torch") is not None, reason="vLLM is here: nothing is handed over")


def bench(venv: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    environment = {**os.environ, "VLLM_VENV": str(venv)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("module", [("plumage_cli", "bench"), ("plumage_bench",)], ids=["plumage", "module"])
def test_the_command_becomes_the_same_one_of_the_other_python(tmp_path: Path, module: tuple[str, ...]) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$@"\nexit 7\n')
    python.chmod(0o755)
    (tmp_path / ".ready").touch()
    done = bench(tmp_path, "-m", *module, "vllm-parity", "--quick", "--seed=3")
    assert done.returncode == 7, done.stderr
    assert done.stdout.split() == ["-m", *module, "vllm-parity", "--quick", "--seed=3"]


@pytest.mark.parametrize("module", [("plumage_cli", "bench"), ("plumage_bench",)], ids=["plumage", "module"])
def test_without_it_the_target_is_named(tmp_path: Path, module: tuple[str, ...]) -> None:
    done = bench(tmp_path, "-m", *module, "vllm-parity", "--quick")
    assert done.returncode != 0
    assert "make setup-vllm" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_help_needs_no_vllm(tmp_path: Path) -> None:
    done = bench(tmp_path, "-m", "plumage_cli", "bench", "vllm-parity", "--help")
    assert done.returncode == 0
    assert "greedy answers" in done.stdout


def test_a_folder_that_is_this_python_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is marked as ready, and vLLM can not be imported: running it once more would never end."""
    (tmp_path / ".ready").touch()
    monkeypatch.setenv("VLLM_VENV", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(Exception, match="make setup-vllm"):
        beside_vllm.hand_over("vllm-parity", "plumage_bench", [])
