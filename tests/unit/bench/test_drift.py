"""The bench `drift`: its loads, its fixed settings, and how runs become a regret."""

from __future__ import annotations

from collections import Counter

import pytest

from plumage_bench.benches.drift import closing, judge, same_engine
from plumage_bench.benches.drift.engine import LOADS, POOLS, Played, Pool, play
from plumage_bench.workloads import ArticleShape, article_sessions

DEFAULT, HOST = POOLS


def test_each_load_has_its_requests_and_repeats_with_its_seed() -> None:
    for kind in LOADS:
        sessions = article_sessions(ArticleShape(kind, 300), 1)
        assert 300 <= sum(map(len, sessions)) < 320
        assert sessions == article_sessions(ArticleShape(kind, 300), 1)
        assert sessions != article_sessions(ArticleShape(kind, 300), 2)
        assert (max(map(len, sessions)) > 1) == (kind in ("agents", "chat", "mix"))


def test_mix_changes_from_code_and_agents_to_retrieval_and_summaries() -> None:
    answers = {24: "code", 64: "agents", 4: "chat", 150: "rag", 200: "summaries"}
    calls = [answers[call.output_tokens] for one in article_sessions(ArticleShape("mix", 4000), 1) for call in one]
    begin, end = Counter(calls[:800]), Counter(calls[-800:])
    assert begin["code"] / 800 == pytest.approx(0.36, abs=0.04)
    assert begin["agents"] / 800 == pytest.approx(0.28, abs=0.04)
    assert end["rag"] / 800 == pytest.approx(0.37, abs=0.04)
    assert end["summaries"] / 800 == pytest.approx(0.22, abs=0.04)


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.label)
def test_fixed_settings_differ_from_ours_and_from_each_other(pool: Pool) -> None:
    ours = pool.ours.engine()
    for quick in (True, False):
        made = [one.engine() for one in pool.fixed(quick)]
        labels = [one.label for one in pool.fixed(quick)]
        assert len(set(labels)) == len(labels)
        assert pool.ours.label not in labels
        assert all((one.host_blocks > 0) == (pool == HOST) for one in made)
    assert pool.ours.engine() == ours, "no setting changed another one's manifest"
    assert len(pool.fixed(quick=False)) > 3 * len(pool.fixed(quick=True))


def test_setting_that_the_manifest_has_is_played_once() -> None:
    settings = [DEFAULT.ours, *DEFAULT.fixed(quick=True)]
    same = {one.label: same_engine(one, settings).label for one in settings}
    assert same["ChtOrder"] == "default"
    assert (same["default"], same["Fcfs"], same["batch 48"]) == ("default", "Fcfs", "batch 48")


def test_manifest_that_adapts_has_no_fixed_admission() -> None:
    assert HOST.ours.engine().tier_options["min_frequency"] is None
    fixed = {one.engine().tier_options["min_frequency"] for one in HOST.fixed(quick=False)}
    assert {1, 2, 4} <= fixed


def test_run_serves_the_whole_load_the_same_each_time() -> None:
    for pool in POOLS:
        first = play(pool.ours, "agents", 120, 1)
        assert first == play(pool.ours, "agents", 120, 1)
        assert first.rate > 0
        assert 0 < first.hits < 1


def runs(*rates: float) -> list[Played]:
    return [Played(rate, 0.5, 0.0) for rate in rates]


def test_regret_is_of_the_load_where_a_fixed_setting_gains_most() -> None:
    level = judge(DEFAULT, "rag", {"default": runs(10, 20), "LRU": runs(9, 18), "RLT": runs(5, 40)})
    assert level.best == "RLT"
    behind = judge(DEFAULT, "code", {"default": runs(10, 20), "LRU": runs(12, 25), "RLT": runs(5, 10)})
    hosted = judge(HOST, "code", {"host memory": runs(10, 20), "LRU": runs(8, 16)})
    keys = closing([level, behind, hosted])
    assert keys["regret"] == keys["regret_default"] == keys["regret_default_code"]
    assert keys["regret"] == pytest.approx(1 - (10 / 12 * 20 / 25) ** 0.5)
    assert keys["regret_high"] == pytest.approx(1 - 20 / 25)
    assert keys["regret_host_memory"] == pytest.approx(-0.25)
