"""The wheel, installed into an empty environment outside of the repository: `plumage up` works there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from support.needs import missing
from support.ports import free_port

ROOT = Path(__file__).parents[2]
INSTALL = (str(ROOT / "scripts" / "install.py"), "-c", str(ROOT / "constraints.txt"))
SECONDS = 100.0
POOL = """apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec: {model: {uri: builtin://tiny-chat, name: tiny-chat}, engine: {runtime: Simulator}}
"""

pytestmark = [pytest.mark.redis, pytest.mark.timeout(400)]


@dataclass
class Installed:
    """An environment with the wheel and what `plumage up` needs."""

    folder: Path
    environment: dict[str, str]

    @property
    def programs(self) -> Path:
        return self.folder / "venv" / "bin"

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.programs / command[0]), *command[1:]], cwd=self.folder, env=self.environment,
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> Installed:
    if find_spec("hatchling") is None:
        missing("the package hatchling", "pip install 'plumage-llm[dev]'")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, capture_output=True, timeout=SECONDS, check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], timeout=SECONDS, check=True)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PLUMAGE_"))}
    made = Installed(folder, {**own, "XDG_RUNTIME_DIR": str(runtime)})
    (wheel,) = folder.glob("*.whl")
    done = made.run("python", *INSTALL, f"{wheel}[local]")
    if done.returncode and made.run("python", *INSTALL, "typer").returncode:
        missing("a package index", "make it reachable for pip, as make setup does")
    assert done.returncode == 0, done.stderr
    return made


def test_wheel_has_no_lab_and_bench_says_so(installed: Installed) -> None:
    places = "import importlib.util, plumage; print(plumage.__file__, importlib.util.find_spec('plumage_bench'))"
    place, lab = installed.run("python", "-c", places).stdout.split()
    assert Path(place).is_relative_to(installed.folder)
    assert lab == "None"
    for words in ((), ("cht",)):
        bench = installed.run("plumage", "bench", *words)
        assert bench.returncode == 1
        assert "benchmarks are not in the package; clone Plumage's repository" in bench.stderr


@pytest.fixture
def pool(installed: Installed) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`plumage up` with the model that is in the wheel, and the pool's address."""
    port = free_port()
    (installed.folder / "pool.yaml").write_text(POOL)
    process = subprocess.Popen(
        [str(installed.programs / "plumage"), "up", "pool.yaml", f"--port={port}"],
        cwd=installed.folder, env=installed.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    yield process, f"http://127.0.0.1:{port}"
    process.kill()
    process.communicate(timeout=SECONDS)


def test_pool_of_the_wheel_answers(pool: tuple[subprocess.Popen[str], str]) -> None:
    process, url = pool
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        deadline = time.monotonic() + SECONDS
        while not _ready(client):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        body = {"model": "tiny-chat", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False
