"""`docs/how-to/own-policy.md`: its examples are valid policies, its settings are accepted, and its comparison runs."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plumage.routing import make_policy
from plumage_bench.ours import Ours
from plumage_bench.virtual_time.fleet import run_fleet
from plumage_bench.workloads import GspShape, OpenLoop, gsp_prompts
from plumage_engine.simulator.engine.settings import EngineSettings
from plumage_engine.simulator.engine.sim_engine import SimEngine
from plumage_engine.vllm.settings import read_settings

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "policies"
PAGE = (ROOT / "docs" / "how-to/own-policy.md").read_text()
ROUTER, ENGINE = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.S))
*EXAMPLE_BLOCKS, COMPARISON = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def _settings() -> EngineSettings:
    """A simulated engine with the page's policies and a cache that is too small."""
    eviction, feather = ENGINE["eviction"], ENGINE["feather"]
    plain = Ours({"engine.simulator.cacheBlocks": 400, "engine.simulator.maxNumSeqs": 32}).engine()
    return replace(
        plain,
        eviction=eviction["policy"], eviction_options=eviction["options"],
        queue=feather["policy"], queue_options=feather["options"],
    )  # fmt: skip


def test_page_shows_each_example_of_about_twenty_lines() -> None:
    files = [EXAMPLES / name for name in ("own_routing.py", "own_eviction.py", "own_stop.py")]
    assert sorted(files) == sorted(EXAMPLES.glob("*.py"))
    assert [file.read_text() for file in files] == EXAMPLE_BLOCKS
    for file in files:
        assert f"../../examples/policies/{file.name}" in PAGE
        assert len(file.read_text().splitlines()) < 30


def test_fleet_runs_with_the_three_examples() -> None:
    routing = ROUTER["policy"]
    policy = make_policy(routing["name"], rng=random.Random(1), **routing["options"])
    prompts = gsp_prompts(GspShape(groups=12, queries=8, lengths=(256, 1024)), 1)
    run = run_fleet([_settings()] * 3, policy, OpenLoop(prompts, 60.0, 1), seed=1)
    assert run.complete
    assert len(run.served) == 12 * 8
    assert len({served.ticket.slot for served in run.served}) == 3


def test_engine_uses_the_policies_of_its_settings() -> None:
    engine: Any = SimEngine(_settings(), rng=random.Random(1))
    assert type(engine.pool.policy).__name__ == "UsesAreSeconds"
    assert type(engine.queue.policy).__name__ == "StrangersInSmallBatches"
    assert engine.queue.policy._small == 4


def test_vllm_plugin_accepts_the_settings() -> None:
    read = read_settings(None, {"PLUMAGE_VLLM": json.dumps(ENGINE)})
    assert read is not None
    assert read.feather is not None
    assert read.feather.policy == ENGINE["feather"]["policy"]


def test_long_prompt_goes_to_its_cache_and_short_one_does_not() -> None:
    from plumage.routing import Query, ReplicaState

    policy = make_policy("own_routing:LongPromptsStay", rng=random.Random(1), long=1000)
    replicas = [ReplicaState(0, routed=3), ReplicaState(1)]
    assert policy.choose(Query(0.0, 2000.0, {0: 1500.0}), replicas).slot == 0
    assert policy.choose(Query(0.0, 500.0, {0: 400.0}), replicas).slot == 1


def test_comparison_runs_as_written() -> None:
    run = subprocess.run(
        [sys.executable, "-c", COMPARISON], env={"PYTHONPATH": str(EXAMPLES)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert [line.rsplit(maxsplit=2)[0] for line in run.stdout.splitlines()] == ["mine + Hotness", "Lbgr + Hotness"]
