"""Every example that one machine can run, runs as it is and answers; local.yaml does so in the other tests,
round-robin-lru.yaml in the demo's, vllm.yaml in tests/vllm, vllm-cpu.yaml in tests/e2e_cluster_vllm; gateway.yaml and
gpu.yaml need a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pool import Pool, leftovers, load, lost, prompts, whole

from plumage_cli.local.plan.unused_fields import of_unchosen_policies, refuse_cluster_fields, without_local_effect
from plumage_cli.manifests import read_pool

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]
_ELSEWHERE = ("gateway.yaml", "gpu.yaml", "local.yaml", "round-robin-lru.yaml", "vllm.yaml", "vllm-cpu.yaml")
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
LOCAL = [path for path in EXAMPLES if path.name not in _ELSEWHERE]


@pytest.mark.parametrize("name", ["local.yaml", "round-robin-lru.yaml"])
def test_demos_examples_have_no_field_without_effect(name: str) -> None:
    manifest = read_pool(EXAMPLES[0].with_name(name))
    assert without_local_effect(manifest) == of_unchosen_policies(manifest) == []


@pytest.mark.parametrize("path", LOCAL, ids=lambda path: path.name)
async def test_example_runs(path: Path, runtime: Path) -> None:
    manifest = read_pool(path)
    refuse_cluster_fields(manifest, path.name)
    assert without_local_effect(manifest) == of_unchosen_policies(manifest) == []
    pool = Pool(runtime, path.name)
    try:
        await pool.until(whole(manifest.spec.initial_replicas))
        again = prompts(2, seed=1) * 3
        outcomes = await load(pool, again, model=manifest.spec.model.served_name)
        assert lost(outcomes) == []
        assert len(outcomes) == 6
    finally:
        status = pool.stop()
        pool.process.kill()
    assert status == 0, pool.output
    assert leftovers(runtime) == []
