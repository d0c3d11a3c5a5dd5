"""Requests of the multi-turn workload to 30 replicas in virtual time: a seed repeats the outcomes.

`plumage bench scale` runs all 10,000 requests and measures the time; no time is asserted here.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from functools import cache
from math import isnan
from pathlib import Path

import pytest
from rich.console import Console

from plumage.errors import ConfigurationError
from plumage_bench.benches.scale import REPLICAS, REQUESTS, digest, run, scenario
from plumage_bench.harness import Context
from plumage_bench.registry import describe
from plumage_bench.routing.contenders import OURS
from plumage_bench.routing.scenario import serve
from plumage_bench.runner import run_benchmark
from plumage_bench.virtual_time.fleet import Served

_SIZE = (REPLICAS, REQUESTS // 10)
_ELSEWHERE = f"""
from plumage_bench.routing.contenders import OURS
from plumage_bench.benches.scale import digest, scenario
from plumage_bench.routing.scenario import serve
print(digest(serve(OURS, scenario(*{_SIZE}), 1).served))
"""


@cache
def _served() -> tuple[Served, ...]:
    return tuple(serve(OURS, scenario(*_SIZE), 1).served)


@pytest.mark.timeout(300)  # seconds of work where other tests hold the cores
def test_all_replicas_have_the_same_outcomes_in_a_process_with_other_hashes() -> None:
    """Sets and dicts have other orders with other hash seeds. A tenth of the requests finds that as well."""
    other = str(1 + int(os.environ.get("PYTHONHASHSEED", "0").replace("random", "0")))
    with subprocess.Popen(
        [sys.executable, "-c", _ELSEWHERE],
        env={**os.environ, "PYTHONHASHSEED": other, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as elsewhere:
        served = _served()
        there, _ = elsewhere.communicate()
    assert (REPLICAS, REQUESTS) == (30, 10_000)
    assert (len(scenario().engines("Lru")), len(served)) == _SIZE
    assert not any(isnan(one.finished) for one in served)
    assert {one.ticket.slot for one in served} == set(range(REPLICAS))
    assert digest(served) == there.strip()


def test_second_run_in_this_process_repeats_the_first_and_another_seed_does_not() -> None:
    first = digest(_served())
    again, other = (digest(serve(OURS, scenario(*_SIZE), seed).served) for seed in (1, 2))
    assert first == again
    assert first != other


def test_digest_covers_every_outcome() -> None:
    served = serve(OURS, scenario(3, 60), 1).served
    whole = digest(served)
    served[-1].cached_tokens += 1
    assert digest(served) != whole


@pytest.mark.parametrize("given", ["0", "-5", "ten", "1e4", "9" * 12])
def test_invalid_number_of_requests_is_refused(given: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="whole number from 25"):
        run(context(tmp_path, given))


def test_requested_number_of_requests_is_served_and_drawn(tmp_path: Path) -> None:
    report = run_benchmark(describe("scale"), run, context(tmp_path, "200"))
    assert report.keys["requests"] == 200
    assert [row[2] for row in report.tables[0].rows] == [200] * 3
    assert [one["seed"] for one in report.data["runs"]] == [1, 2, 3]
    assert len({one["digest"] for one in report.data["runs"]}) == 3
    assert report.keys["wall_s"] == round(sorted(one["wall_s"] for one in report.data["runs"])[1], 2)
    assert (report.keys["runs"], report.keys["distinct_outcomes"]) == (3, 1)
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_full_run_serves_the_first_seed_twice(tmp_path: Path) -> None:
    report = run(context(tmp_path, "100", quick=False))
    assert [one["seed"] for one in report.data["runs"]] == [1, 2, 3, 1]
    assert (report.keys["runs"], report.keys["distinct_outcomes"]) == (4, 1)


def context(out: Path, requests: str, quick: bool = True) -> Context:
    return Context("scale", quick, 1, out, Console(file=io.StringIO()), {"requests": requests})
