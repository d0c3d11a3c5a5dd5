"""What `vllm-hostmem` reports from its counts."""

from __future__ import annotations

import random

import pytest

from plumage_bench.benches.vllm_hostmem.report import (
    RATIOS,
    Counted,
    Found,
    Load,
    closing,
    plot,
    ratio,
    ratios_table,
    stretch,
)

NAMES = ("lru", "all", "A 2", "threshold 2, half", "A 2, half", "A+lookahead", "A+lookahead again", "E+A+lookahead",
         "A+P hotness", "A+P recency", "A+P frequency", "A+P depth")  # fmt: skip


def found(gains: dict[str, float]) -> Found:
    """Two suites, five seeds. A+P finds `gains[suite]` times what LRU does, within half a percent."""
    rng, made = random.Random(1), {}
    for suite, gain in gains.items():
        for kind in ("copies", "even", "zipf", "half"):
            rows: dict[str, list[Counted]] = {name: [] for name in NAMES}
            for _ in range(5):
                level = rng.uniform(200_000, 400_000)
                for name in NAMES:
                    device = level * (gain if name.startswith(("A+", "E+")) else 1.0) * rng.lognormvariate(0.0, 0.005)
                    stored = 20_000 if name == "all" else 1_000
                    rows[name].append(
                        Counted(1_000_000, int(device), 100_000, stored, copies=100, steps=1000, promoted=100,
                                promoting=0.1, storing=0.2)
                    )  # fmt: skip
            made[Load(suite, kind)] = rows
    return made


def test_worst_suite_counts() -> None:
    both = found({"mmlu": 1.4, "bbh": 1.1})
    keys = closing(both)
    assert 1.08 < keys["lookahead_gain_low"] <= keys["lookahead_gain"] < 1.12
    assert 1.2 < ratio(both, RATIOS["lookahead_gain"]).ratio < 1.3
    assert keys["pairs"] == 10


def test_rerun_with_other_chance_is_one_within_its_interval() -> None:
    keys = closing(found({"mmlu": 1.4, "bbh": 1.1}))
    assert keys["again_low"] < 1.0 < keys["again_high"]


def test_bytes_and_time_are_not_the_same() -> None:
    keys = closing(found({"mmlu": 1.0}))
    assert keys["bytes_ratio"] == 20.0
    assert keys["time_ratio"] < keys["link_ratio"] < 20.0


def test_lost_hits_are_hits_of_unkept_blocks() -> None:
    made = found({"mmlu": 1.0})
    for one in made[Load("mmlu", "copies")]["A 2"]:
        one.device, one.host = int(0.8 * one.device), int(0.8 * one.host)
    keys = closing(made)
    assert 0.18 < keys["hit_loss"] < 0.22
    assert keys["hit_loss"] < keys["hit_loss_high"] < 0.23


def test_step_pays_for_plans_and_for_the_memory_of_copies() -> None:
    planned = Counted(steps=1000, promoting=0.3)
    assert planned.stretch == pytest.approx(1.03)
    copied = Counted(steps=1000, promoting=0.3, promoted=1000)
    assert 1.03 < copied.stretch < 1.031
    assert stretch([planned, copied]).high <= copied.stretch


def test_step_with_a_prompt_takes_longer() -> None:
    decodes = Counted(steps=1000, promoting=0.3, prompt=50_000, device=30_000, host=20_000)
    prefills = Counted(steps=1000, promoting=0.3, prompt=150_000, device=30_000, host=20_000)
    assert decodes.stretch == pytest.approx(1.03)
    assert prefills.stretch == pytest.approx(1.0 + 0.3 / (10.0 + 100_000 * 2 * 8.03e9 / (0.6 * 181e12)))


def test_link_takes_its_latency_and_its_rate() -> None:
    few, many = Counted(stored=1000, copies=10), Counted(stored=1000, copies=1000)
    assert many.link - few.link == pytest.approx(990 * 20e-6)
    assert few.link == pytest.approx(1000 * 16 * 131_072 / 25e9 + 200e-6)


def test_table_and_plot_show_each_suite() -> None:
    from matplotlib.figure import Figure

    made = found({"mmlu": 1.2, "bbh": 1.1})
    assert len(ratios_table(made).rows) == len(RATIOS)
    figure = Figure()
    plot(figure, made)
    assert {text.get_text() for text in figure.axes[1].get_legend().get_texts()} == {"mmlu", "bbh"}


def test_partial_run_reports_its_kinds() -> None:
    from matplotlib.figure import Figure

    made = {load: rows for load, rows in found({"hellaswag": 1.2}).items() if load.kind == "copies"}
    keys = closing(made)
    assert keys["bytes_ratio"] == 20.0
    assert keys["pairs"] == 5
    assert not {"lookahead_gain", "again", "decode_slowdown"} & keys.keys()
    assert [row[0] for row in ratios_table(made).rows] == ["bytes_ratio", "time_ratio", "link_ratio", "hits_kept"]
    plot(Figure(), made)
