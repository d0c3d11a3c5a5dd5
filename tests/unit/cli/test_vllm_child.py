"""A server with child processes under the supervisor: no process outlives its parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from plumage_cli.local.plan.processes import ProcessPlan
from plumage_cli.local.plan.vllm_command import VllmCommand
from plumage_cli.local.processes.child import Child, ChildState
from plumage_cli.local.processes.child_log import ChildLog

# As vLLM: a server, its engine core, a worker. Each waits only for its own signals.
SERVER = textwrap.dedent(
    """
    import os, signal, subprocess, sys, time
    core = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']); "
    subprocess.Popen([sys.executable, "-c", core + "time.sleep(300)"])
    def end(*_):
        print("ended in order", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    print("up", os.environ["FROM_THE_CONFIG"], flush=True)
    while True:
        time.sleep(0.1)
    """
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "engine.json"
    (tmp_path / "key").write_text("secret")
    command: VllmCommand = {
        "command": [sys.executable, "-c", SERVER],
        "environment": {"FROM_THE_CONFIG": "this"},
        "apiKeyFile": str(tmp_path / "key"),
    }
    path.write_text(json.dumps(command))
    return path


@pytest.fixture
def child(tmp_path: Path, config: Path) -> Child:
    plan = ProcessPlan(
        "engine chat-0", "engine", "plumage_cli.local.processes.vllm_child", {}, 1, "http://x", "http://x/health"
    )
    return Child(plan, config, ChildLog(tmp_path / "child.log"), lambda _: None)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))  # multiprocessing's own are among them
    yield
    for process in set(psutil.Process().children(recursive=True)) - before:
        process.kill()


async def family(child: Child) -> list[psutil.Process]:
    """The child, its server, core and worker, once all of them run."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if child.pid is not None and "up this" in child.log.tail:
            root = psutil.Process(child.pid)
            found = [root, *root.children(recursive=True)]
            if len(found) == 4:
                return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"not up: {list(child.log.tail)}")


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("which", [0, 1], ids=["child", "server"])
async def test_kill_9_leaves_no_process_and_the_server_restarts(child: Child, which: int) -> None:
    child.start()
    first = await family(child)
    child.log.tail.clear()
    os.kill(first[which].pid, signal.SIGKILL)
    second = await family(child)
    assert child.restarts == 1
    assert await asyncio.to_thread(gone, first)
    assert not {one.pid for one in first} & {one.pid for one in second}
    await child.stop(10.0)
    assert await asyncio.to_thread(gone, second)


async def test_sigterm_is_passed_on(child: Child) -> None:
    child.start()
    processes = await family(child)
    await child.stop(10.0)
    assert child.state is ChildState.STOPPED
    assert child.last_exit == "ended with status 0"
    assert child.log.tail[-1] == "ended in order"
    assert await asyncio.to_thread(gone, processes)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a process when its parent ends")
def test_all_processes_end_with_a_killed_supervisor(config: Path, tmp_path: Path) -> None:
    parent = textwrap.dedent(
        f"""
        import os, subprocess, sys, time
        subprocess.Popen([sys.executable, "-m", "plumage_cli.local.processes.launch", str(os.getpid()),
                          "plumage_cli.local.processes.vllm_child", "--config", {str(config)!r}],
                         start_new_session=True)
        time.sleep(300)
        """
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.DEVNULL) as supervisor:
        root = psutil.Process(supervisor.pid)
        deadline = time.monotonic() + 30
        while len(family_of := root.children(recursive=True)) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(family_of) == 4
        supervisor.kill()
        assert gone(family_of)
