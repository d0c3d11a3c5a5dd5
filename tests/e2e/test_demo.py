"""The demo, as `make demo` calls it, with a shorter load."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.needs import missing
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


def test_a_demo_that_is_kept_answers_the_printed_command_and_ends_on_ctrl_c(runtime: Path, tmp_path: Path) -> None:
    """`make demo KEEP=1`, with two fast engines instead of four."""
    if shutil.which("curl") is None:
        missing("the curl command", "apt-get install curl")
    for name in ("local.yaml", "round-robin-lru.yaml"):
        few = (ROOT / "examples" / name).read_text().replace("replicas: 4", "replicas: 2")
        (tmp_path / name).write_text(few.replace("preset: GPU", "preset: GPU\n        timeScalePercent: 10"))
    demo = subprocess.Popen(
        [sys.executable, "-u", "-m", "plumage_cli", "demo", "--quick", f"--examples={tmp_path}"],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), "COLUMNS": "120", "KEEP": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout is not None
    told = []
    try:
        for line in demo.stdout:
            told.append(line)
            if line.strip().startswith("curl "):
                break
        assert "pool chat stays up; Ctrl-C ends it. Try:" in "".join(told)
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        tried = subprocess.run(
            ["bash", "-c", told[-1]], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert json.loads(tried.stdout)["choices"][0]["message"]["content"]
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does
        rest, _ = demo.communicate(timeout=60)
    except BaseException:
        os.killpg(demo.pid, signal.SIGKILL)
        raise
    assert demo.returncode == 0, "".join(told) + rest
    assert "Traceback" not in "".join(told) + rest
    assert leftovers(runtime) == []
    assert not list((runtime / "plumage").iterdir())


def table(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("│")]
