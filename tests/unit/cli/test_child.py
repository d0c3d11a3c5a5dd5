"""A supervised child process, its log, and its ports."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from support.conditions import until

from plumage_cli.errors import PortTakenError
from plumage_cli.local.plan.processes import ProcessPlan
from plumage_cli.local.processes.child import Child, ChildState, backoff
from plumage_cli.local.processes.child_log import ChildLog
from plumage_cli.local.processes.ports import free_ports, require_free


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Child:
    """A child whose module is `program`."""
    (tmp_path / "some_module.py").write_text(textwrap.dedent(program))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    plan = ProcessPlan("engine chat-0", "engine", "some_module", {}, 1, "http://x", "http://x/health")
    return Child(plan, tmp_path / "config.json", ChildLog(tmp_path / "child.log"), lambda _: None)


SLEEPER = "import sys, time\nprint('up', sys.argv[1:], flush=True)\ntime.sleep(60)"


async def test_killed_child_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = child(tmp_path, monkeypatch, SLEEPER)
    one.start()
    await until(lambda: len(one.log.tail) == 1)
    first = one.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: one.restarts == 1 and one.state is ChildState.RUNNING and one.pid not in (None, first))
    assert one.last_exit == "was ended by SIGKILL"
    await one.stop(5.0)
    assert one.state is ChildState.STOPPED
    assert one.pid is None
    assert f"up ['--config', '{tmp_path / 'config.json'}']" in (tmp_path / "child.log").read_text()


async def test_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)"
    )
    one = child(tmp_path, monkeypatch, stubborn)
    one.start()
    await until(lambda: len(one.log.tail) == 1)
    await one.stop(0.2)
    assert one.pid is None
    assert "killed" in one.log.tail[-1]


async def test_child_that_cannot_start_reports_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = child(tmp_path, monkeypatch, "import sys\nsys.exit('the cache needs 3 blocks')")
    one.start()
    await until(lambda: one.crashes >= 2)
    assert one.last_exit == "ended with status 1"
    assert set(one.log.last_lines().splitlines()) == {"    the cache needs 3 blocks"}, "not our own text"
    assert not one.refused
    await one.stop(1.0)


async def test_child_that_refuses_its_settings_is_known_by_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = child(tmp_path, monkeypatch, "import sys\nprint('no such model', flush=True)\nsys.exit(2)")
    one.start()
    await until(lambda: one.refused)
    await one.stop(1.0)


def test_children_end_with_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text(SLEEPER)
    parent_program = textwrap.dedent(
        """
        import os, subprocess, sys, time
        words = [sys.executable, "-m", "plumage_cli.local.processes.launch", str(os.getpid()), "some_module"]
        print(subprocess.Popen(words, stdout=subprocess.DEVNULL).pid, flush=True)
        time.sleep(60)
        """
    )
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with subprocess.Popen(
        [sys.executable, "-c", parent_program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as parent:
        assert parent.stdout is not None
        orphan = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.3)
        parent.kill()
    deadline = time.monotonic() + 30.0
    while orphan.is_running() and orphan.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE


def test_backoff_doubles_up_to_a_cap() -> None:
    assert [backoff(crashes) for crashes in (1, 2, 3, 7, 8, 1000)] == [0.25, 0.5, 1.0, 15.0, 15.0, 15.0]


def test_log_stays_small_and_survives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ChildLog(tmp_path / "child.log")
    monkeypatch.setattr("plumage_cli.local.processes.child_log._MAX_FILE", 1000)
    for number in range(300):
        log.write(f"line {number} " + "x" * 50)
    assert len(log.tail) == 200
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3000
    full = ChildLog(tmp_path / "missing" / "child.log")
    full.write("last words")
    assert full.write_error == "No such file or directory"
    assert full.last_lines() == "    last words"


async def test_endless_line_does_not_fill_memory(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "child.log")
    reader = asyncio.StreamReader(limit=1024)
    reader.feed_data(b"y" * 100_000 + b"\nshort\n")
    reader.feed_eof()
    await log.pump(reader)
    assert log.tail[-1] == "short"
    assert max(map(len, log.tail)) <= 4096


def test_used_port_is_reported_with_its_owner() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortTakenError, match=rf"port {port} is in use.*choose another one with --port"):
            require_free("127.0.0.1", port)
    require_free("127.0.0.1", port)


def test_free_ports_are_distinct_and_avoid_used_ones() -> None:
    first = free_ports(4, (), start=100)
    second = free_ports(4, first, start=100)
    assert len({*first, *second}) == 8


async def test_start_is_retried_after_a_lack_of_resources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = child(tmp_path, monkeypatch, SLEEPER)
    spawn = asyncio.create_subprocess_exec
    refusals = 1

    async def refuse_once(*command: str, **options: object) -> asyncio.subprocess.Process:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise OSError(24, "Too many open files")
        return await spawn(*command, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse_once)
    one.start()
    await until(lambda: one.last_exit == "could not be started: Too many open files")
    await until(lambda: one.state is ChildState.RUNNING)
    await one.stop(5.0)


async def test_child_stopped_during_its_start_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = child(tmp_path, monkeypatch, SLEEPER)
    spawn, starting, go_on = asyncio.create_subprocess_exec, asyncio.Event(), asyncio.Event()

    async def slowly(*command: str, **options: object) -> asyncio.subprocess.Process:
        process = await spawn(*command, **options)  # type: ignore[arg-type]
        starting.set()
        await go_on.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slowly)
    one.start()
    await starting.wait()
    stopping = asyncio.create_task(one.stop(60.0))
    await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(30.0):
        await stopping
    assert one.last_exit == "was ended by SIGTERM"
