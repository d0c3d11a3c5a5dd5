"""Calls on several processes: results in order, and no process left behind after any end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from plumage_bench.parallel import in_parallel

LONG = 60.0
PROGRAM = """if True:
    import signal, sys, time
    from plumage_bench.parallel import in_parallel
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if __name__ == "__main__":
        in_parallel(time.sleep, [(0.0,), (60.0,), (60.0,), (60.0,)], lambda _: print("one", flush=True))
"""


def test_results_are_in_the_order_of_the_calls() -> None:
    advanced: list[int] = []
    assert in_parallel(divmod, [(7, 2), (9, 5), (8, 8)], advanced.append) == [(3, 1), (1, 4), (1, 0)]
    assert advanced == [1, 1, 1]


def test_each_result_is_reported_as_it_ends() -> None:
    reported: dict[int, tuple[int, int]] = {}
    in_parallel(divmod, [(7, 2), (9, 5), (8, 8)], lambda _: None, ended=reported.__setitem__)
    assert reported == {0: (3, 1), 1: (1, 4), 2: (1, 0)}


def test_first_error_ends_the_others() -> None:
    with pytest.raises(ValueError, match="non-negative"):
        in_parallel(time.sleep, [(LONG,), (-1.0,), (LONG,)], lambda _: None)
    assert multiprocessing.active_children() == []


def test_error_ends_no_foreign_process() -> None:
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(LONG,))
    other.start()
    try:
        with pytest.raises(ValueError, match="non-negative"):
            in_parallel(time.sleep, [(LONG,), (-1.0,)], lambda _: None)
        assert multiprocessing.active_children() == [other]
    finally:
        other.kill()
        other.join()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, (143,)), (signal.SIGKILL, (-9,)), (signal.SIGINT, (1, -2, 130))]
)
def test_stopped_benchmark_leaves_no_process(tmp_path: Path, number: int, status: Sequence[int]) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode in status
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
