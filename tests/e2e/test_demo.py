"""The demo, as `make demo` calls it, with a shorter load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.pool import ROOT, leftovers

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]


def test_the_demo_kills_an_engine_loses_nothing_and_compares(runtime: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "plumage_cli", "demo", "--quick"],
        cwd=ROOT,
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), "COLUMNS": "120", "KEEP": "0"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("(kill -9)") >= 2
    rows = {row.split("│")[1].strip(): [cell.strip() for cell in row.split("│")[2:5]] for row in table(done.stdout)}
    assert rows["lost"][:2] == ["0", "0"]
    ours, baseline = (float(cell.rstrip("%")) for cell in rows["hit ratio (cached ÷ prompt tokens)"][:2])
    assert ours > baseline
    assert "Devices are simulated" in done.stdout
    assert leftovers(runtime) == []
    assert not list((runtime / "plumage").iterdir())


def table(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("│")]
