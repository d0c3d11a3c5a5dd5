"""`quality` with real processes: engines, our router with its directory and agents, and round robin as the other."""

from __future__ import annotations

import tempfile
from pathlib import Path

from plumage_bench.benches.quality import serve
from plumage_bench.benches.quality.cases import Case
from plumage_bench.benches.quality.fleet import Fleet
from plumage_bench.workloads import GspShape, OpenLoop, gsp_prompts

_GROUPS, _QUERIES = 8, 6
_CASE = Case(
    lambda seed, rate: OpenLoop(gsp_prompts(GspShape(_GROUPS, _QUERIES, (1024,)), seed), rate, seed), 8.0, 200_000, 50
)


def test_ours_finds_more_in_the_caches_of_the_same_engines_than_round_robin() -> None:
    with tempfile.TemporaryDirectory(prefix="plm-") as folder, Fleet(_CASE.ours(), 2, Path(folder), 1) as fleet:
        ours = serve(fleet, Fleet.ours, _CASE, 1)
        theirs = serve(fleet, Fleet.round_robin, _CASE, 1)  # before caches that ours has filled and a reset has emptied
    assert (ours.failed, theirs.failed) == (0, 0), ours.why or theirs.why
    assert ours.requests == theirs.requests
    assert 0.0 < theirs.hits < ours.hits < 0.55  # half of a prompt is shared
    assert ours.router_cores > 0.0
