"""A simulated engine takes another batching policy while it works, as vLLM's plugin does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integration.simulator.conftest import Engine, running

PATH, TABLES = "/v1/plumage/feather", "/v1/plumage/tables"


def test_policy_change_keeps_running_answers() -> None:
    slow = {"preset": "gpu", "timeScale": 0.5}
    with running(device=slow, maxNumSeqs=2, feather={"policy": "Bandit"}) as engine, ThreadPoolExecutor(6) as threads:
        before = engine.admin.get(TABLES).raise_for_status().json()
        asked = [threads.submit(engine.chat, f"{n} and so on", max_tokens=80, ignore_eos=True) for n in range(6)]
        engine.until(lambda stats: stats["running"] == 2 and stats["waiting"] == 4)
        assert engine.admin.post(PATH, json={"policy": "QLearning", "chunkTokens": 128}).status_code == 204
        after = engine.admin.get(TABLES).raise_for_status().json()
        assert (before["policy"], after["policy"]) == ("Bandit", "QLearning")
        assert before["fingerprint"] != after["fingerprint"]
        assert before["life"] != after["life"], "it counts as another engine where learned tables are shared"
        assert [one.result()["usage"]["completion_tokens"] for one in asked] == [80] * 6
        for policy in ("BanditPaper", "Fcfs"):
            assert engine.admin.post(PATH, json={"policy": policy}).status_code == 204
            assert engine.admin.get(TABLES).status_code == 404, "it shares nothing"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"policy": "Banditt"}',
        b'{"policy": "Bandit", "options": {"alpha": 1}}',
        b'{"policy": "plumage.batching.stop:Always"}',  # a request can't name code to import
    ],
)
def test_invalid_policy_is_refused_and_changes_nothing(engine: Engine, body: bytes) -> None:
    refused = engine.admin.post(PATH, content=body)
    assert refused.status_code == 400
    assert "feather" in refused.json()["error"]["message"]
    assert engine.client.post(PATH, content=body).status_code == 401
    assert engine.chat("still here", max_tokens=2)["usage"]["completion_tokens"] <= 2


def test_same_policy_changes_nothing() -> None:
    with running(feather={"policy": "Bandit"}) as engine:
        life = engine.admin.get(TABLES).json()["life"]
        assert engine.admin.post(PATH, json={"policy": "Bandit"}).status_code == 204
        assert engine.admin.get(TABLES).json()["life"] == life
