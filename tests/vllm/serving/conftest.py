"""A router, or a simulated engine, in a process of its own beside vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.waiting import looks


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[[str, dict[str, Any]], str]]:
    """Call it with a module and its configuration: the address of the process once it is healthy."""
    with ExitStack() as stack:

        def start(module: str, config: dict[str, Any]) -> str:
            path = tmp_path / f"{module}.json"
            path.write_text(json.dumps(config))
            child = subprocess.Popen([sys.executable, "-m", module, "--config", str(path)])
            stack.callback(child.wait, 60)
            stack.callback(child.kill)
            url = f"http://127.0.0.1:{config.get('port') or config['listen']['port']}"
            assert any(_healthy(url) for _ in looks(120)), "it did not start"
            return url

        yield start


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
