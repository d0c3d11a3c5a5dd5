"""The import contract of the engine package refuses imports between agent, simulator and vLLM plugin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "engine" / "plumage_engine"
PLANTED = {
    "agent/drain.py": "plumage_engine.simulator.job",
    "simulator/job.py": "plumage_engine.vllm.settings",
    "vllm/settings.py": "plumage_engine.agent.drain",
    "configuration.py": "plumage_engine.fetch",
}


@pytest.mark.parametrize(("importer", "imported"), PLANTED.items())
def test_planted_import_breaks_the_contract(tmp_path: Path, importer: str, imported: str) -> None:
    copy = tmp_path / "plumage_engine"
    shutil.copytree(ENGINE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / importer).open("a") as file:
        file.write(f"\n\nimport {imported}\n")
    broken = _lint(tmp_path, _config(tmp_path))
    assert broken.returncode == 1
    assert "1 broken" in broken.stdout


def _config(folder: Path) -> Path:
    """A configuration with the contract of the engine package alone."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (one for one in contracts if one.get("containers") == ["plumage_engine"])
    layers = "\n".join(f"    {layer}" for layer in found["layers"])
    path = folder / "contract.ini"
    path.write_text(
        "[importlinter]\nroot_package = plumage_engine\n\n[importlinter:contract:engine]\n"
        f"name = {found['name']}\ntype = {found['type']}\ncontainers =\n    plumage_engine\nlayers =\n{layers}\n"
    )
    return path


def _lint(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, f"--config={config}", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
