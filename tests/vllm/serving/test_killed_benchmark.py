"""A killed benchmark leaves no vLLM server behind, at any point of the server's start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from support.ports import free_port

_SERVES = """
import sys
from pathlib import Path
from plumage_bench.vllm.server import serving
with serving(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])):
    pass
"""
_SECONDS = 60.0


def test_killed_benchmark_ends_its_server(tiny_model: Path, tmp_path: Path) -> None:
    arguments = [str(tiny_model), str(free_port()), str(tmp_path / "log")]
    bench = subprocess.Popen([sys.executable, "-c", _SERVES, *arguments])
    family = _family(bench.pid)
    os.kill(bench.pid, signal.SIGKILL)
    bench.wait()
    _, alive = psutil.wait_procs(family, timeout=_SECONDS)
    assert not alive


def _family(pid: int) -> list[psutil.Process]:
    """The processes that it started, once the API server is among them."""
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        family = psutil.Process(pid).children(recursive=True)
        if any("api_server" in " ".join(one.cmdline()) for one in family if one.is_running()):
            return family
        time.sleep(0.1)
    raise AssertionError(f"no API server within {_SECONDS:.0f} s")
