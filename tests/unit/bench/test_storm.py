"""The storm's accounting: the same mutations for the same seed, lost requests with their reason, and failures with a
name.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from plumage_bench.benches.storm import _crashes, _report, _Run
from plumage_bench.benches.storm.faults import Faults, processes
from plumage_bench.benches.storm.load import Honest, Hostile, Outcome, is_named
from plumage_bench.benches.storm.mutations import mutated


def view(ready: int, restarts: int = 0) -> dict[str, Any]:
    def child(pid: int) -> dict[str, Any]:
        return {"pid": pid, "restarts": restarts, "state": "Running"}

    replicas = [
        {"state": "Ready" if index < ready else "Warming", "engine": child(10 + index), "agent": child(20 + index)}
        for index in range(4)
    ]
    return {"routers": [child(1)], "directory": child(2) | {"replaced": 0}, "replicas": replicas}


@pytest.fixture
def folder() -> Iterator[Path]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="plm-") as path:
        yield Path(path)


def test_seed_determines_the_mutations() -> None:
    def sent(seed: int) -> list[bytes]:
        rng = random.Random(seed)
        return [mutated(rng).data for _ in range(300)]

    assert sent(1) == sent(1) != sent(2)
    assert len(set(sent(1))) > 250
    names = {name for number in range(3000) for name in mutated(random.Random(number)).names}
    assert {"field", "bytes", "chunks", "length", "pipelined", "deep", "wide", "version"} <= names


@pytest.mark.parametrize(
    ("status", "body", "named"),
    [
        (503, b'{"error": {"message": "m", "code": "overloaded"}}', True),
        (500, b'{"error": {"message": "m", "code": null}}', False),
        (500, b'{"error": {"message": "m", "code": 500}}', False),
        (502, b"<html>", False),
        (500, b"[" * 100_000, False),
        (404, b"", True),
    ],
)
def test_expected_failures_have_a_name(status: int, body: bytes, named: bool) -> None:
    assert is_named(status, body) is named


def test_request_is_lost_by_a_router_kill_only_while_it_runs(folder: Path) -> None:
    faults = Faults(folder, lambda: view(4), random.Random(1))
    faults.done = [(10.0, "kill router"), (30.0, "kill engine")]
    client = Honest(1, random.Random(1), None)  # type: ignore[arg-type]
    client.outcomes = [
        Outcome("lost", 9.0, 10.1), Outcome("lost", 11.0, 12.0), Outcome("refused", 30.0, 30.0),
        Outcome("cut", 9.0, 10.0), Outcome("whole", 9.0, 12.0),
    ]  # fmt: skip
    hostile = Hostile(1, random.Random(1), [0], lambda _: None)
    hostile.outcomes.update({"400": 5, "refused": 1})
    hostile.unnamed = ["500 field"]
    done = _Run(faults, [client], [hostile], 0.0, 40.0, {"router": 0, "engine": 2}, 4, 1, "", well=True)
    assert done.lost() == (1, 2)
    keys = _report(done).keys
    assert (keys["crashes"], keys["unnamed_5xx"], keys["refused_connections"], keys["mutated"]) == (3, 1, 2, 6)
    assert keys["replaced"] == 4
    assert (keys["honest"], keys["honest_whole"], keys["well_again"]) == (5, 1, 1)


def test_crash_is_a_restart_that_nobody_requested() -> None:
    assert _crashes(view(4), {}) == {"router": 0, "directory": 0, "engine": 0, "agent": 0}
    assert _crashes(view(4, restarts=1), {"router": 1, "engine": 3, "agent": 4, "directory": 2}) == {
        "router": 0, "directory": 0, "engine": 1, "agent": 0,
    }  # fmt: skip


def test_directory_without_a_socket_is_replaced_and_did_not_crash() -> None:
    seen = view(4)
    seen["directory"] |= {"restarts": 3, "replaced": 2}
    assert _crashes(seen, {})["directory"] == 1


async def test_last_replicas_are_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, _: killed.append(pid))
    faults = Faults(folder, lambda: view(2), random.Random(1))
    assert processes(view(2))["engine"] == [10, 11]
    assert not await faults._one("kill engine")
    faults.view = lambda: view(3)
    assert await faults._one("kill engine")
    assert len(killed) == 1
    assert faults.killed == {"engine": 1}


async def test_sockets_and_files_are_removed_but_no_logs_or_hard_links(folder: Path) -> None:
    (folder / ".sockets").mkdir()
    for name in ("router.json", "router.log", ".sockets/events-0"):
        (folder / name).write_text("")
    with ExitStack() as stack:
        made = stack.enter_context(socket.socket(socket.AF_UNIX))
        made.bind(str(folder / "events-0"))
        faults = Faults(folder, lambda: view(4), random.Random(1))
        assert await faults._one("remove file")
        assert await faults._one("remove socket")
        assert not await faults._one("remove file")
        assert not await faults._one("remove socket")
    assert _files(folder) == ["events-0", "router.log"]
    assert [kind for _, kind in faults.done] == ["remove file", "remove socket"]
    assert all(abs(at - time.monotonic()) < 60 for at, _ in faults.done)


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())
