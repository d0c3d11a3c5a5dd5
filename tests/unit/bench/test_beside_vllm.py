"""A benchmark that needs vLLM restarts in the environment that has it, or says how to get one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from plumage.errors import ConfigurationError
from plumage_bench import beside_vllm
from plumage_bench.device import CPU, check_device, work_clock
from plumage_bench.registry import describe

pytestmark = pytest.mark.skipif(find_spec("torch") is not None, reason="vLLM is here: nothing is handed over")


def bench(venv: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    environment = {**os.environ, "VLLM_VENV": str(venv)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("module", [("plumage_cli", "bench"), ("plumage_bench",)], ids=["plumage", "module"])
def test_command_runs_again_in_the_other_python(tmp_path: Path, module: tuple[str, ...]) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$@"\nexit 7\n')
    python.chmod(0o755)
    (tmp_path / ".ready").touch()
    done = bench(tmp_path, "-m", *module, "vllm-parity", "--quick", "--seed=3")
    assert done.returncode == 7, done.stderr
    assert done.stdout.split() == ["-m", *module, "vllm-parity", "--quick", "--seed=3"]


@pytest.mark.parametrize("module", [("plumage_cli", "bench"), ("plumage_bench",)], ids=["plumage", "module"])
def test_missing_environment_names_the_make_target(tmp_path: Path, module: tuple[str, ...]) -> None:
    done = bench(tmp_path, "-m", *module, "vllm-parity", "--quick")
    assert done.returncode != 0
    assert "make setup-vllm" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_help_needs_no_vllm(tmp_path: Path) -> None:
    done = bench(tmp_path, "-m", "plumage_cli", "bench", "vllm-parity", "--help")
    assert done.returncode == 0
    assert "greedy answers" in done.stdout


def test_own_environment_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is marked as ready, but vLLM cannot be imported: a restart would repeat for ever."""
    (tmp_path / ".ready").touch()
    monkeypatch.setenv("VLLM_VENV", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(Exception, match="make setup-vllm"):
        beside_vllm.hand_over(describe("vllm-parity"), "plumage_bench", [])


@pytest.mark.parametrize("name", ["vllm-feather", "vllm-parity", "attention-premise"])
def test_gpu_run_uses_the_named_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$@"\nexit 7\n')
    python.chmod(0o755)
    done = bench(tmp_path, "-m", "plumage_cli", "bench", name, "--device=cuda")
    assert (done.returncode, done.stdout.split()) == (7, ["-m", "plumage_cli", "bench", name, "--device=cuda"])
    python.unlink()
    done = bench(tmp_path, "-m", "plumage_cli", "bench", name, "--device=cuda")
    assert done.returncode != 0
    assert "name by VLLM_VENV a virtual environment" in " ".join((done.stdout + done.stderr).split())


def test_unknown_device_is_refused(tmp_path: Path) -> None:
    done = bench(tmp_path, "-m", "plumage_cli", "bench", "vllm-feather", "--device=tpu")
    assert done.returncode != 0
    assert "there are: cpu, cuda" in done.stdout + done.stderr


def test_torch_without_gpu_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.13.0+cpu", cuda=cuda))
    check_device(CPU)
    with pytest.raises(ConfigurationError, match=r"torch 2\.13\.0\+cpu .* finds no GPU .* VLLM_VENV"):
        check_device("cuda")


def test_benchmark_without_device_runs_here() -> None:
    assert beside_vllm.go_where_it_runs(describe("cht"), "cuda", "plumage_bench", []) == CPU


def test_clock_of_a_gpu_waits_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    cuda = SimpleNamespace(synchronize=lambda: done.append(1))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert work_clock(CPU)() <= work_clock(CPU)()
    assert not done
    assert work_clock("cuda")() <= work_clock("cuda")()
    assert len(done) == 2
