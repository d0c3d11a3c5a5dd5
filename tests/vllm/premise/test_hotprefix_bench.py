"""`bench vllm-hotprefix` on a CPU: what each contender deploys, and how its rounds are counted."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from plumage_bench.benches import vllm_hotprefix
from plumage_bench.benches.vllm_hotprefix import CONTENDERS, PRODUCT, Load
from plumage_bench.harness import Context
from plumage_bench.vllm.shapes import shape
from plumage_bench.workloads.fewshot import FewshotShape
from plumage_engine.simulator.engine.device import GPU

_MIB = 1 << 20


def test_contenders_have_the_host_memory_that_their_name_says() -> None:
    of = {label: one.arguments(3 * _MIB).get("kv_transfer_config") for label, one in CONTENDERS.items()}
    assert [label for label, transfer in of.items() if transfer is None] == ["LRU", "E", "LRU again"]
    sizes = {label: one.kv_connector_extra_config["cpu_bytes_to_use"] for label, one in of.items() if one is not None}
    assert set(sizes.values()) == {3 * _MIB}
    specs = {label: one.kv_connector_extra_config["spec_name"] for label, one in of.items() if one is not None}
    assert specs == {
        "offloading": "CPUOffloadingSpec", "offloading, 2": "CPUOffloadingSpec",
        "offloading, ARC": "CPUOffloadingSpec", "A+P": "HostTierSpec", "A+lookahead": "HostTierSpec",
        "E+A+P": "HostTierSpec", "product": "HostTierSpec",
    }  # fmt: skip


def test_product_is_what_a_manifest_with_host_memory_deploys() -> None:
    assert PRODUCT.ours(_MIB).listed()["overrides"] == {"engine.hostMemory.capacity": "1Mi"}
    settings = CONTENDERS["A+P"].arguments(_MIB)["additional_config"]["plumage"]
    assert settings["hostTier"]["promotionLookahead"] == 0
    assert (settings["feather"], settings["eviction"], settings["batchLimit"]) == (None, None, "Static")


def test_rounds_repeat_prefixes_with_new_questions() -> None:
    load = Load.made("mmlu", 1, rounds=2, questions=20, zipf=0.0, share=0.25)
    assert [len(prompts) for prompts in load.rounds] == [20, 20, 20]
    first = [{prompt.blocks[0] for prompt in prompts} for prompts in load.rounds]
    assert first[0] & first[1], "rounds share prefixes"
    assert load.device < load.host
    assert load == Load.made("mmlu", 1, rounds=2, questions=20, zipf=0.0, share=0.25)


@pytest.mark.timeout(300)
def test_run_reports_each_contender_over_lru(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With short prompts and in float32: a CPU needs a minute for the benchmark's own, in bfloat16."""
    own, small = vllm_hotprefix.write_shape, {"dtype": "float32", "max_model_len": 512}
    monkeypatch.setattr(vllm_hotprefix, "write_shape", lambda *given: {**own(*given), **small})
    short = FewshotShape(subjects=8, example_tokens=96, question_tokens=24)
    monkeypatch.setitem(vllm_hotprefix.FEWSHOT_SUITES, "mmlu", short)  # type: ignore[arg-type]
    options = {"contenders": "product", "questions": "4", "pairs": "1"}
    context = Context("vllm-hotprefix", True, 1, tmp_path, Console(file=io.StringIO()), options)
    report = vllm_hotprefix.run(context)
    assert [row[0] for row in report.tables[0].rows] == ["LRU", "product"]
    assert report.keys["product_over_lru_pairs"] == 1
    (lru,), (product,) = (report.data["rounds"]["m8"][label] for label in ("LRU", "product"))
    assert len(lru["ttft_s"]) == len(product["ttft_s"]) == 4
    assert all(0 < wait < 300 for wait in product["ttft_s"])
    assert 0 <= lru["cached"] < 1


@pytest.mark.timeout(300)
def test_modelled_run_has_each_model_and_link_and_repeats(tmp_path: Path) -> None:
    options = {"contenders": "offloading, 2;A+P;product", "questions": "32", "pairs": "1", "modelled": "1"}
    reports = [
        vllm_hotprefix.run(Context("vllm-hotprefix", True, 1, tmp_path, Console(file=io.StringIO()), options))
        for _ in range(2)
    ]
    assert reports[0].data == reports[1].data, "virtual time repeats"
    rounds = reports[0].data["rounds"]
    assert len(rounds) == 6
    slow, fast = (rounds[f"llama-3-8b, {link}"] for link in ("12 GB/s", "50 GB/s"))
    assert slow["LRU"] == fast["LRU"], "without host memory the link does not matter"
    assert slow["offloading, 2"][0]["seconds"] > fast["offloading, 2"][0]["seconds"]
    assert slow["A+P"][0]["cached"] > slow["LRU"][0]["cached"], "host memory adds hits"


def test_costs_of_the_presets_model_are_the_presets() -> None:
    costs = vllm_hotprefix._costs(shape("llama-3-8b"), GPU.pcie)
    for name, value in costs.items():
        assert value == pytest.approx(getattr(GPU, name), rel=0.07), name
