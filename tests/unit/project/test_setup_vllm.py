"""The checks of `make setup-vllm` before it changes anything, and what `make test` does after a failed set-up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "setup-vllm.sh"
LINUX = 'case "$1" in -s) echo Linux ;; -m) echo x86_64 ;; esac'
DISK = 'echo "Filesystem 1024-blocks Used Available Capacity Mounted"; echo "/dev/x 9 9 {} 9% /"'


def run(
    folder: Path, script: Path, *words: str, programs: dict[str, str], **more: str
) -> subprocess.CompletedProcess[str]:
    """A script in an empty folder, with these programs first on the PATH. CI is set only where it is given."""
    found = folder / "bin"
    found.mkdir()
    for name, text in programs.items():
        (found / name).write_text(f"#!/bin/sh\n{text}\n")
        (found / name).chmod(0o755)
    work = folder / "work"
    work.mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "MAKEFLAGS")}
    environment = {**kept, "PATH": f"{found}{os.pathsep}{os.environ['PATH']}", **more}
    command = ["bash", str(script), *words]
    return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_other_platform_is_reported_with_its_consequence(tmp_path: Path) -> None:
    other = {"uname": 'case "$1" in -s) echo Darwin ;; -m) echo arm64 ;; esac'}
    done = run(tmp_path, SCRIPT, programs=other)
    assert done.returncode == 1
    assert "for Linux on x86-64, and this is Darwin arm64" in done.stderr
    assert "are skipped" in done.stderr
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("version", "fits"),
    [("(3, 10, 9)", False), ("(3, 11, 0)", True), ("(3, 14, 9)", True), ("(3, 15, 0)", False)],
)
def test_python_without_a_vllm_build_is_refused(tmp_path: Path, version: str, fits: bool) -> None:
    """An interpreter that answers as this version and does nothing else."""
    real = shutil.which("python3")
    lying = f'[ "$1" = -c ] || {{ echo "Python {version}"; exit 98; }}\nshift\n'
    lying += f'exec {real} -c "import sys; sys.version_info = {version}; $1"'
    done = run(tmp_path, SCRIPT, programs={"uname": LINUX, "python3": lying, "df": DISK.format(10**8)})
    assert done.returncode == 1
    assert ("needs Python 3.11 to 3.14" in done.stderr) == (not fits), done.stderr
    assert ("could not create .venv-vllm" in done.stderr) == fits


def test_full_disk_is_found_before_the_installation(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPT, programs={"uname": LINUX, "df": DISK.format(3 * 2**20)})
    assert done.returncode == 1
    assert "about 4 GB of disk are needed here, and 3 GB are free" in done.stderr
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("more", [{}, {"CI": "1"}], ids=["here", "in CI"])
def test_failed_set_up_is_skipped_with_a_reason(tmp_path: Path, more: dict[str, str]) -> None:
    programs = {"make": "echo 'the disk is full' >&2; echo 'make: *** [setup-vllm] Error 1' >&2; exit 2"}
    (tmp_path / "work" / "tests" / "vllm" / "fleet").mkdir(parents=True)
    (tmp_path / "work").rename(tmp_path / "kept")
    script = tmp_path / "test.sh"
    script.write_text(f"cd '{tmp_path}/kept'\n" + (ROOT / "scripts" / "test.sh").read_text())
    done = run(tmp_path, script, programs=programs, **more)
    assert done.returncode == (1 if more else 0)
    assert "== SKIPPED: tests/vllm, because\nthe disk is full\n" in done.stdout
    assert "make: ***" not in done.stdout + done.stderr
    assert "vllm: SKIPPED, can not be set up here" in done.stdout
    assert ("with CI set, a missing part is a failure" in done.stdout) == bool(more)


@pytest.mark.parametrize(("arguments", "python"), [("tests/vllm/x -q", "vllm"), ("tests/unit -q", "dev")])
def test_named_tests_run_in_their_environment(tmp_path: Path, arguments: str, python: str) -> None:
    for name in ("vllm", "dev"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "python").write_text(f'#!/bin/sh\necho {name}: "$@"\n')
        (tmp_path / name / "python").chmod(0o755)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "bin").symlink_to(tmp_path / "vllm")
    more = {"BIN": str(tmp_path / "dev"), "VLLM_VENV": str(tmp_path / "venv")}
    done = run(tmp_path, ROOT / "scripts" / "test.sh", *arguments.split(), programs={"make": "exit 0"}, **more)
    assert done.stdout == f"{python}: -m pytest {arguments}\n"


def test_quick_runs_neither_vllm_nor_an_api_server(tmp_path: Path) -> None:
    """Each test of a folder that is split runs once."""
    for name in ("contract", "e2e", "e2e_cluster", "integration/router", "integration/operator", "vllm/fleet"):
        (tmp_path / "kept" / "tests" / name).mkdir(parents=True)
    router = {path.relative_to(ROOT) for path in (ROOT / "tests" / "integration" / "router").glob("test_*.py")}
    units = {path.relative_to(ROOT).parts[:3] for path in (ROOT / "tests" / "unit").rglob("test_*.py")}
    for path in router:
        (tmp_path / "kept" / path).touch()
    for parts in units:
        tmp_path.joinpath("kept", *parts).mkdir(parents=True)
    python = tmp_path / "dev" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho ran: "$@"\n')
    python.chmod(0o755)
    script = tmp_path / "test.sh"
    script.write_text(f"cd '{tmp_path}/kept'\n" + (ROOT / "scripts" / "test.sh").read_text())
    done = run(tmp_path, script, "--quick", programs={"make": "exit 9"}, BIN=str(python.parent))
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split(" ") for line in done.stdout.splitlines() if line.startswith("ran: ")]
    paths = sorted(word.rstrip("/") for words in ran for word in words if word.startswith("tests/"))
    assert paths == sorted(
        str(path) for path in [Path("tests", "contract"), *router, *(Path(*parts) for parts in units)]
    )
    assert all(words[-3:] == ["-m", "not", "api_server"] for words in ran)


PIP = 'case "$*" in *"+cpu"*) exit 1 ;; *"torch=="*) echo "$@" >>"$LOG"; exit 1 ;; *) exit 0 ;; esac'
PYTHON = 'case "$*" in *"-m venv"*) mkdir -p .venv-vllm/bin; cp "$0" .venv-vllm/bin/python ;; *install.py*) {} ;; esac'


@pytest.mark.parametrize("torch", ["cpu", "any"])
def test_pytorch_with_cuda_is_announced_with_its_size_and_can_be_refused(tmp_path: Path, torch: str) -> None:
    """The CPU build cannot be reached: the installer says so, and its other calls are recorded."""
    python = PYTHON.format(PIP.replace("$LOG", str(tmp_path / "asked")))
    script = tmp_path / "kept" / "scripts" / "setup-vllm.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    programs = {"uname": LINUX, "python3": python, "df": DISK.format(10**8)}
    pins = f"cp '{ROOT}/constraints-vllm.txt' . && exec bash '{script}'"
    start = tmp_path / "start.sh"
    start.write_text(pins)
    done = run(tmp_path, start, programs=programs, VLLM_TORCH=torch, PYTHON="python3")
    assert done.returncode == 1
    refused = "VLLM_TORCH=cpu refuses CUDA's" in done.stderr
    assert refused == (torch == "cpu"), done.stderr + done.stdout
    assert (tmp_path / "asked").exists() == (torch == "any")
    if torch == "any":
        assert "WARNING: downloading PyPI's build instead, with CUDA's libraries: 6.3 GB" in done.stdout


def test_pytorch_with_cuda_is_used_after_a_warning_where_the_cpu_build_is_away(tmp_path: Path) -> None:
    """The installer finds all but the CPU build, and its calls are recorded."""
    asked = tmp_path / "asked"
    pip = f'echo "$@" >>"{asked}"; case "$*" in *"+cpu"*) exit 1 ;; *) exit 0 ;; esac'
    script = tmp_path / "kept" / "scripts" / "setup-vllm.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    start = tmp_path / "start.sh"
    start.write_text(f"cp '{ROOT}/constraints-vllm.txt' . && exec bash '{script}'")
    programs = {"uname": LINUX, "python3": PYTHON.format(pip), "df": DISK.format(10**8)}
    done = run(tmp_path, start, programs=programs, PYTHON="python3")
    assert done.returncode == 0, done.stdout + done.stderr
    warning = "WARNING: downloading PyPI's build instead, with CUDA's libraries: 6.3 GB. VLLM_TORCH=cpu refuses it."
    assert warning in done.stdout
    calls = asked.read_text().splitlines()
    torch = [call.split()[-1] for call in calls if "torch==" in call]
    assert [one.endswith("+cpu") for one in torch] == [True, True, False], "two indexes of the CPU build, then PyPI"
    assert len(calls) == len(torch) + 2, "vLLM and Plumage follow"
    assert (tmp_path / "work" / ".venv-vllm" / ".ready").exists()


@pytest.mark.parametrize("kernels", ["_C_AVX2", "none"])
def test_kernels_are_loaded_as_vllm_loads_them(tmp_path: Path, kernels: str) -> None:
    """A processor without AVX-512 dies of vLLM's newest library and runs its oldest."""
    modules = tmp_path / "modules"
    (modules / "vllm" / "platforms").mkdir(parents=True)
    (modules / "torch.py").write_text("class ops: _C = type('Kernels', (), {})\n")
    (modules / "vllm" / "_C.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)\n")
    (modules / "vllm" / "_C_AVX2.py").write_text("import torch; torch.ops._C.rms_norm = None\n")
    load = "pass" if kernels == "none" else f"import vllm.{kernels}"
    platform = f"class CpuPlatform:\n    @classmethod\n    def import_kernels(cls): {load}\n"
    (modules / "vllm" / "platforms" / "cpu.py").write_text(platform)
    real = f'case "$1" in -W) exec env PYTHONPATH="{modules}" {sys.executable} "$@" ;; esac\n'
    script = tmp_path / "kept" / "scripts" / "setup-vllm.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    start = tmp_path / "start.sh"
    start.write_text(f"cp '{ROOT}/constraints-vllm.txt' . && exec bash '{script}'")
    done = run(
        tmp_path, start, programs={"uname": LINUX, "python3": real + PYTHON.format("exit 0"), "df": DISK.format(10**8)}
    )
    assert (done.returncode == 0) == (kernels != "none"), done.stdout + done.stderr
    assert ("can not be imported here" in done.stderr) == (kernels == "none")
