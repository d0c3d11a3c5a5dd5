"""The soak's arithmetic: what grows, what is left over, what /proc and the metrics pages say, and when is restarted."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plumage.api.v1alpha1 import InferencePool
from plumage_bench.benches.soak import FULL, QUICK, SPEC, _unasked
from plumage_bench.benches.soak.connection import Connection, LostError, request_bytes
from plumage_bench.benches.soak.load import Load, Tenants
from plumage_bench.benches.soak.observer import Sample, left_over, slope_in
from plumage_bench.benches.soak.pages import gauges, sum_of
from plumage_bench.benches.soak.process_sizes import (
    ProcessSize,
    memory_and_threads,
    process_size,
    socket_states,
    tcp_states,
)
from plumage_bench.benches.soak.restarts import JUDGED, Restart, pid_of, plan, restart
from plumage_bench.benches.soak.slope import FLAT, slope_of
from plumage_router.http.auth import KeyFile

MB = 1e6
TIMES = [5.0 * number for number in range(181)]  # 15 minutes
STATUS = "Name:\tpython\nVmRSS:\t   2048 kB\nRssAnon:\t   1024 kB\nThreads:\t3\n"
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:D2F0 08 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 20 4 30 10 -1
   2: 0100007F:1F90 0100007F:D2F2 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0
"""


def noise(size: float, *, lasting: float = 0.0) -> list[float]:
    """Seeded, for each time. lasting: of each value, what is left in the next."""
    rng, value, found = random.Random(1), 0.0, []
    for _ in TIMES:
        value = lasting * value + rng.gauss(0.0, size)
        found.append(value)
    return found


def test_slope_of_a_line_is_exact() -> None:
    found = slope_of(TIMES, [100 * MB + 2 * MB * at / 3600 for at in TIMES])
    assert found is not None
    assert found.per_hour == pytest.approx(2 * MB)
    assert found.low == pytest.approx(2 * MB)
    assert found.seconds == 900
    assert found.growth(found.per_hour) == pytest.approx(0.5 / 100.25)


def test_interval_of_noise_has_the_slope_and_is_wider_if_it_lasts() -> None:
    lines = [100 * MB + 10 * MB * at / 3600 for at in TIMES]
    short, lasting = (
        slope_of(TIMES, [sum(pair) for pair in zip(lines, noise(0.2 * MB, lasting=part), strict=True)])
        for part in (0.0, 0.97)
    )
    assert short is not None
    assert lasting is not None
    assert short.low < 10 * MB < short.high
    assert lasting.low < 10 * MB < lasting.high
    assert lasting.high - lasting.low > 3 * (short.high - short.low)


@pytest.mark.parametrize(
    ("growth", "grows"), [(0.0, False), (0.5 * FLAT, False), (2.0 * FLAT, True), (-2.0 * FLAT, False)]
)
def test_memory_grows_if_it_certainly_grows_by_more_than_the_limit(growth: float, *, grows: bool) -> None:
    values = [100 * MB * (1 + growth * at / 900) + one for at, one in zip(TIMES, noise(0.1 * MB), strict=True)]
    found = slope_of(TIMES, values)
    assert found is not None
    assert found.grows() is grows


def test_growth_within_much_noise_is_not_certain() -> None:
    values = [100 * MB * (1 + 2 * FLAT * at / 900) + one for at, one in zip(TIMES, noise(8 * MB), strict=True)]
    found = slope_of(TIMES, values)
    assert found is not None
    assert found.growth(found.high) > FLAT
    assert not found.grows()


def test_too_few_samples_have_no_slope() -> None:
    assert slope_of([], []) is None
    assert slope_of(TIMES[:7], [1.0] * 7) is None
    assert slope_of([1.0] * 20, [1.0] * 20) is None


def test_status_of_a_process() -> None:
    assert memory_and_threads(STATUS) == (2 << 20, 1 << 20, 3)
    with pytest.raises(KeyError):  # a zombie
        memory_and_threads("Name:\tpython\nThreads:\t1\n")


def test_sockets_by_state_without_those_of_no_process() -> None:
    assert tcp_states(TCP) == {4711: "LISTEN", 4712: "CLOSE_WAIT"}


def test_own_process_has_the_descriptors_that_it_opened(tmp_path: Path) -> None:
    before = process_size(os.getpid(), socket_states())
    with socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX), (tmp_path / "a").open("w"):
        after = process_size(os.getpid(), socket_states())
    assert before is not None
    assert after is not None
    assert after.files - before.files == 3
    assert after.sockets["LISTEN"] - before.sockets.get("LISTEN", 0) == 1
    assert after.sockets["not TCP"] - before.sockets.get("not TCP", 0) == 1
    assert after.resident > after.anonymous > 1 << 20
    assert process_size(1 << 30, {}) is None


def test_gauges_of_a_page_by_sample_and_by_family() -> None:
    page = "\n".join((
        "# HELP plumage_router_in_flight Requests in flight.", "plumage_router_in_flight 2",
        'plumage_router_replica_in_flight{replica="a"} 1', 'plumage_router_replica_in_flight{replica="b"} 2',
        'plumage_router_entries{store="audit"} 7', 'plumage_router_entries{store="bodies"} 3', "other 5",
    ))  # fmt: skip
    found = gauges(page)
    assert sum_of(found, "plumage_router_in_flight") == 2
    assert sum_of(found, "plumage_router_replica_in_flight") == 3
    assert sum_of(found, 'plumage_router_entries{store="bodies"}') == 3
    assert sum_of(found, "plumage_router_tasks") is None
    assert "other" not in found


def sample(
    at: float, *, name: str = "router", pid: int = 1, resident: float = 0.0, files: int = 10, **page: float
) -> Sample:
    size = ProcessSize(pid, int(resident), int(resident), 1, files, {"LISTEN": 1, "ESTABLISHED": files - 5})
    names = {"tasks": "plumage_router_tasks", "in_flight": "plumage_router_in_flight"}
    return Sample(at, {name: size}, {name: {names[what]: value for what, value in page.items()}})


def test_left_over_is_what_is_above_the_level_at_rest_in_all_samples() -> None:
    idle = [sample(0, tasks=14), sample(1, tasks=15, files=11)]
    assert left_over(idle, [sample(9, tasks=17, files=14), sample(10, tasks=15, files=11)]) == {}
    found = left_over(idle, [sample(9, tasks=17, files=13, in_flight=1), sample(10, tasks=18, files=14, in_flight=1)])
    assert found == {
        ("router", "files"): 1, ("router", "sockets"): 1, ("router", "tasks"): 2,
        ("router", "plumage_router_in_flight"): 1,
    }  # fmt: skip


def test_level_at_rest_is_the_highest_of_a_role_and_one_spare_connection() -> None:
    idle = [sample(0, name="agent 0", files=27), sample(0, name="agent 1", files=28)]
    assert left_over(idle, [sample(9, name="agent 0", files=29)]) == {}
    assert left_over(idle, [sample(9, name="agent 0", files=30)])["agent 0", "files"] == 1


def test_directory_may_have_a_spare_connection_of_each_client() -> None:
    idle, clients = [sample(0, name="directory")], [sample(9), sample(9, name="agent 0"), sample(9, name="agent 1")]
    assert ("directory", "files") not in left_over(idle, [sample(9, name="directory", files=13), *clients])
    assert left_over(idle, [sample(9, name="directory", files=14), *clients])["directory", "files"] == 1


def test_process_that_was_restarted_within_its_window_is_not_judged() -> None:
    samples = [sample(at, pid=1 if at < 300 else 2, resident=1e8 + at) for at in TIMES]
    assert slope_in(samples, "router", 0.0, 900.0) is None
    assert slope_in(samples, "router", 300.0, 900.0) is not None
    assert slope_in(samples, "agent 0", 0.0, 900.0) is None


@pytest.mark.parametrize("extent", [FULL, QUICK])
def test_each_judged_process_is_restarted_before_its_window_and_others_in_it(extent: Any) -> None:
    restarts = plan(extent.seconds, extent.restarts_every)
    assert restarts == sorted(restarts)
    assert restarts[-1].at < 0.95 * extent.seconds
    for name, (start, end) in JUDGED.items():
        times = [one.at / extent.seconds for one in restarts if one.name == name]
        assert not any(start <= at <= end for at in times)
        assert name == "supervisor" or any(at < start for at in times)
    beside = {one.name for one in restarts if one.at > JUDGED["router"][0] * extent.seconds}
    assert {"directory", "engine 2", "engine 3", "agent 2", "agent 3"} == beside
    assert {one.kill for one in restarts if one.name == "router"} == {True, False}


def view(pid: int | None) -> Mapping[str, Any]:
    return {"routers": [{"pid": 1}], "directory": None, "replicas": [
        {"id": "soak-3", "engine": {"pid": pid}, "agent": {"pid": 8}}]}  # fmt: skip


def test_restart_ends_the_process_that_runs() -> None:
    sent: list[tuple[int, int]] = []
    assert restart(view(7), Restart(0.0, "engine 3", kill=True), lambda *both: sent.append(both))
    assert not restart(view(None), Restart(0.0, "engine 3", kill=True), lambda *both: sent.append(both))
    assert sent == [(7, 9)]
    assert pid_of(view(7), "directory") is None


def test_end_without_a_signal_is_a_crash_and_one_of_the_directory_counts_once() -> None:
    seen = {"routers": [{"restarts": 2}], "directory": {"restarts": 2}, "replicas": []}
    asked = [Restart(1.0, "router", kill=False), Restart(2.0, "directory", kill=True)]
    log = "the directory's server was ended by SIGKILL; restarting it in 0.25 s\ndirectory.sock was deleted\n"
    assert _unasked(seen, asked, log) == 1
    assert _unasked(seen, [asked[0], asked[0], asked[1]], log) == 0
    assert _unasked(seen, [asked[0], asked[0]], log) == 1


def test_spec_is_a_manifest() -> None:
    kind = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": "a"}}
    assert InferencePool.model_validate({**kind, "spec": SPEC}).spec.replicas == 4


def test_keys_of_new_tenants_are_valid_for_a_while(tmp_path: Path) -> None:
    tenants = Tenants(tmp_path / "keys")
    keys = [tenants.add() for _ in range(20)]
    file = KeyFile(tenants.path)
    assert file.find(b"key-0") is not None
    assert file.find(keys[0].encode()) is None
    newest = file.find(keys[-1].encode())
    assert newest is not None
    assert newest.name == "new-tenant-20"


async def test_client_reads_chunks_and_lengths_and_notices_the_end() -> None:
    answers = [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nno",
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.rpartition(b"content-length: ")[2]))
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        connection = await Connection.open(server.sockets[0].getsockname()[1])
        await connection.send(request_bytes({"a": 1}, "key"))
        assert await connection.answer() == 200
        assert [part async for part in connection.parts()] == [b"abc", b"de"]
        await connection.send(request_bytes(b"{}", "key"))
        assert await connection.read_all() == 404
        assert not connection.keeps_alive
        await connection.send(request_bytes(b"{}", "key"))
        with pytest.raises(LostError):
            await connection.read_all()
        connection.abort()


async def test_client_counts_requests_to_a_router_that_is_away(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    load = Load(port, Tenants(tmp_path / "keys"), "seed")
    asyncio.get_running_loop().call_later(0.05, load.stop.set)
    await load.run("reconnects", 0)
    assert load.outcomes == {("reconnects", "lost"): 1}
