"""A disk in virtual time: when its transfers end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from plumage_bench.virtual_gpu.clock import VirtualClock
from plumage_bench.virtual_gpu.disk import VirtualDisk

LATENCY = 100e-6


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def disk(clock: VirtualClock) -> VirtualDisk:
    """Reads a chunk in a second, and writes one in two, with the latency."""
    return VirtualDisk(clock, reading=100.0, writing=50.0, chunk=100.0)


def test_transfer_ends_after_its_bytes(disk: VirtualDisk, clock: VirtualClock) -> None:
    moved: list[int] = []
    tasks: list[Callable[[], None]] = [lambda: moved.append(1), lambda: moved.append(2)]
    disk.enqueue_load(7, 2, tasks)
    assert moved == [1, 2]
    clock.wait_until(2.0)
    assert disk.get_finished() == []
    clock.wait_until(2.0 + 2 * LATENCY)
    assert disk.get_finished() == [(7, True, pytest.approx(2.0 + 2 * LATENCY))]
    assert disk.get_finished() == []


def test_reads_follow_each_other_and_writes_do_not_delay_them(disk: VirtualDisk, clock: VirtualClock) -> None:
    disk.enqueue_store(1, 1, [lambda: None])
    disk.enqueue_load(2, 1, [lambda: None])
    disk.enqueue_load(3, 1, [lambda: None])
    clock.wait_until(1.0 + LATENCY)
    assert [job for job, _, _ in disk.get_finished()] == [2]
    clock.wait_until(2.0 + 2 * LATENCY)
    assert [job for job, _, _ in disk.get_finished()] == [1, 3]
    clock.wait_until(10.0)
    disk.enqueue_load(4, 1, [lambda: None])
    clock.wait_until(11.0)
    assert disk.get_finished() == [], "an idle disk begins when it is asked"
