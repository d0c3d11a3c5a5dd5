"""A simulated engine whose loop died does not stay and look healthy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from plumage.models import resolve

PROGRAM = """
import sys
from plumage_engine.simulator import __main__
from plumage_engine.simulator.runner import Runner

async def run(self):
    raise RuntimeError("a bug in the engine")

Runner.run = run
__main__.main()
"""


def test_dead_engine_ends_server(tmp_path: Path) -> None:
    config = tmp_path / "engine.json"
    settings = {"modelFolder": str(resolve("builtin://tiny-chat")), "model": "tiny-chat", "port": 0}
    config.write_text(json.dumps(settings))
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "a bug in the engine" in ended.stderr
    assert "so the server ends" in ended.stderr
