"""What `vllm-parity` compares and what counts as a difference, without vLLM."""

from __future__ import annotations

import random

from plumage.settings.plugin_config import PluginSettings
from plumage_bench.baselines.batching import POLICY_NAMES, path
from plumage_bench.benches.vllm_parity import BLOCK, Difference, compare, prompts, variants
from plumage_bench.vllm.engine import Prompt


def test_first_difference_is_found_with_its_context() -> None:
    prompt = Prompt("a", (1, 2), 4)
    assert compare(prompt, (5, 6, 7, 8), (5, 6, 9, 8)) == Difference((1, 2, 5, 6), 7, 9)
    assert compare(prompt, (5, 6, 7, 8), (5, 6, 7, 8)) is None


def test_aborted_answer_is_compared_as_far_as_it_came() -> None:
    prompt = Prompt("a", (1, 2), 4)
    assert compare(prompt, (5, 6, 7, 8), (5, 6)) is None
    assert compare(prompt, (5, 6, 7, 8), ()) is None
    assert compare(prompt, (5, 6, 7, 8), (4,)) == Difference((1, 2), 5, 4)


def test_seed_repeats_the_prompts_and_they_share_blocks() -> None:
    wanted = prompts(random.Random(3), 300)
    assert wanted == prompts(random.Random(3), 300) != prompts(random.Random(4), 300)
    firsts = [one.tokens[:BLOCK] for one in wanted if len(one.tokens) >= BLOCK]
    assert len(set(firsts)) < len(firsts) / 2
    assert max(len(one.tokens) + one.answer for one in wanted) <= 544
    assert 10 < sum(one.abort is not None for one in wanted) < 60
    assert [one.step for one in wanted] == sorted(one.step for one in wanted)


def test_oracle_gets_the_groups_and_strangers_have_none() -> None:
    wanted = prompts(random.Random(3), 300)
    shared: dict[int | None, set[tuple[int, ...]]] = {}
    for one in wanted:
        shared.setdefault(one.group, set()).add(one.tokens[:BLOCK])
    strangers = shared.pop(None)
    assert len(shared) == 24 < len(strangers)
    assert all(len(firsts) == 1 for firsts in shared.values())


def test_each_policy_is_served_and_stop_policies_stop() -> None:
    queues = {one.name.removeprefix("feather "): one for one in variants(quick=False) if "feather " in one.name}
    assert set(queues) == set(POLICY_NAMES)
    never = {name for name, one in queues.items() if "stops" not in one.about}
    assert never == {"ChtOrder", "Fcfs", "Lpm", "DfsWeight", "Predictive", "Marginal"}
    assert all((one.plugin or {})["feather"]["policy"] == path(name) for name, one in queues.items())


def test_each_setting_is_compared_with_vllm_in_the_same_situation() -> None:
    chosen = variants(quick=False)
    stock = {one.name.partition(", ")[2] for one in chosen if one.plugin is None}
    plugin = {one.name.partition(", ")[2] for one in chosen if one.name.startswith("plugin, ")}
    tiers = {"host tier", "host tier, 56 blocks", "host tier, aborts", "host tier, asynchronous"}
    disks = {"host tier, disk", "host tier, disk, aborts, asynchronous"}
    assert plugin - stock == {"as vLLM's"} | tiers | disks
    assert stock <= plugin
    assert len({one.name for one in chosen}) == len(chosen)
    for one in chosen:
        PluginSettings.model_validate(one.plugin or {})


def test_quick_run_omits_what_its_help_says() -> None:
    names = {one.name for one in variants(quick=False)} - {one.name for one in variants(quick=True)}
    left_out = ("feather ", "eviction ", "batch ", "plugin, host tier, ", "host tier")
    assert all(name.startswith(left_out) for name in names)
