"""The benchmark's comparison in small: vLLM with itself, the plugin with vLLM, and a check that a difference would be
found."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from plumage_bench.benches.vllm_parity import Difference, Variant, compare, missed, prompts, serve, ties, variants
from plumage_bench.vllm.engine import Answer

WANTED = prompts(random.Random(12), 80)
# Of vLLM alone only the two with the most different batches; each takes an engine's start and a few seconds.
ALONE = ("vLLM, batches of 5", "vLLM, asynchronous, 56 blocks")
TOO_FEW, FEW = 56, 96  # blocks: enough for all concurrent requests, and barely enough
CHOSEN = {one.name: one for one in variants(quick=True) if one.plugin is not None or one.name in ALONE}
PROMOTED = ("promotions", "promotions_used")
FULL = {one.name: one for one in variants(quick=False)}


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> Mapping[str, Answer]:
    return serve(tiny_model, Variant("reference"), WANTED)[0]


@pytest.mark.parametrize("name", CHOSEN)
def test_answers_equal_vllm(tiny_model: Path, expected: Mapping[str, Answer], name: str) -> None:
    got, outcome = serve(tiny_model, CHOSEN[name], WANTED)
    assert outcome.failed == []
    found = [compare(one, expected[one.name].tokens, got[one.name].tokens) for one in WANTED]
    differences = [one for one in found if one is not None]
    assert all(ties(tiny_model, differences))
    # The variant had its effect. For the plugin's effects, `about` adds a missing one to the failures.
    blocks = CHOSEN[name].arguments.get("num_gpu_blocks_override")
    assert blocks == FEW or (outcome.preemptions > 0) == (blocks == TOO_FEW)
    assert (outcome.aborted > 0) == CHOSEN[name].aborts


def test_every_variant_names_its_effects() -> None:
    """Otherwise a run without evictions or promotions could pass as parity."""
    for one in FULL.values():
        less_room = one.plugin is not None and "num_gpu_blocks_override" in one.arguments
        evicts = less_room and one.plugin.get("eviction", "default") is not None
        assert ("evictions" in one.about) == evicts, one.name
        assert ("host_admissions" in one.about) == bool(one.host), one.name
        promotes = bool(one.host) and one.plugin["hostTier"].get("promotion") != "Off"
        assert [what in one.about for what in PROMOTED] == [promotes] * len(PROMOTED), one.name


def test_missing_effect_fails() -> None:
    variant = FULL["plugin, host tier, aborts"]
    assert missed(variant, {"evictions": 5, "host_admissions": 0}) == [
        "no host admissions", "no promotions", "no promotions used",
    ]  # fmt: skip
    assert missed(variant, dict.fromkeys(variant.about, 1)) == []


def test_answers_of_other_model_are_no_ties(tiny_model: Path, expected: Mapping[str, Answer], tmp_path: Path) -> None:
    from plumage_engine.vllm.tiny_model import write_model

    got, _ = serve(write_model(tmp_path / "other", seed=1), Variant("another model"), WANTED[:20])
    found = [compare(one, expected[one.name].tokens, got[one.name].tokens) for one in WANTED[:20]]
    differences = [one for one in found if one is not None]
    assert len(differences) == 20
    assert not all(ties(tiny_model, differences))


def test_tie_compares_two_likeliest_tokens(tiny_model: Path, expected: Mapping[str, Answer]) -> None:
    one = WANTED[0]
    first = expected[one.name].tokens[0]
    same = Difference(one.tokens, first, first)
    assert ties(tiny_model, [same, replace(same, got=(first + 1) % 256)])[0] is True


def test_compared_server_loads_plugin(tiny_model: Path) -> None:
    variant = Variant("a policy that is not there", {"feather": {"policy": "Nobody"}})
    with pytest.raises(Exception, match="Nobody"):
        serve(tiny_model, variant, WANTED[:1])
