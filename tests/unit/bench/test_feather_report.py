"""What `vllm-feather` reports: the gain of each part of FEATHER, and the delay of requests that wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from plumage.defaults import BATCH_LIMIT, EVICTION_POLICY
from plumage_bench.benches.vllm_feather.cells import Cell
from plumage_bench.benches.vllm_feather.contenders import ALWAYS, CONTENDERS, FCFS, OFF, ORDER, PRODUCT
from plumage_bench.benches.vllm_feather.report import Played, later, report
from plumage_bench.vllm.shapes import shape
from plumage_engine.vllm.settings import read_settings


def run_of(*waits: float) -> Played:
    return Played(tokens=1, cpu=1.0, wall=1.0, waits=waits, gaps=(), batch=1.0, stops=0)


def test_request_is_compared_with_itself() -> None:
    fair = run_of(*(float(place) for place in range(200)))
    assert later([fair], [fair]) == 0.0
    turned = run_of(*(float(place) for place in reversed(range(200))))
    assert later([turned], [fair]) == pytest.approx(197.0, abs=2.0)


def test_worst_pair_counts_with_all_others() -> None:
    fair = run_of(*(1.0 for _ in range(50)))
    late = run_of(*(1.0 for _ in range(45)), *(9.0 for _ in range(5)))
    assert later([fair, late], [fair, fair]) == 8.0
    assert later([fair], [late]) == 0.0


def test_pairs_are_counted() -> None:
    with pytest.raises(ValueError, match="shorter"):
        later([run_of(1.0)], [])


CELLS = (Cell("8 × 4k", 8), Cell("16 × 4k, open", 16))


def runs_at(rate: float, stops: int = 0) -> list[Played]:
    return [Played(64, 64 / rate, 1.0, (0.1,), (0.01,), 16.0, stops)] * 3


def keys_of(played: Mapping[str, Mapping[str, Sequence[Played]]]) -> Mapping[str, float | str | int]:
    return report(CELLS, CONTENDERS, played, shape("m8")).keys


def test_rows_stand_under_their_columns() -> None:
    closed = {label: runs_at(100.0) for label in ("FCFS", "order")}
    (table,) = report(CELLS, CONTENDERS, {cell.name: closed for cell in CELLS}, shape("m8")).tables
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["policy"] for row in rows] == ["FCFS", "order"] * 2
    assert all(row["KV ÷ weights"] == pytest.approx(25.8, abs=0.1) for row in rows)


def test_each_part_is_reported_over_fcfs_and_over_the_order() -> None:
    rates = {"FCFS": 100.0, "FCFS sorted": 108.0, "order": 200.0, "order sorted": 200.0, "product": 198.0}
    closed = {label: runs_at(rate) for label, rate in rates.items()} | {"bandit": runs_at(190.0, stops=65)}
    keys = keys_of({"8 × 4k": closed, "16 × 4k, open": closed})
    assert keys["FCFS_sorted_over_fcfs"] == pytest.approx(1.08)
    assert keys["order_over_fcfs"] == pytest.approx(2.0)
    assert keys["order_sorted_over_order"] == pytest.approx(1.0)
    assert keys["product_over_order"] == pytest.approx(0.99)
    assert keys["bandit_over_order"] == pytest.approx(0.95)
    assert (keys["bandit_stops"], keys["product_stops"]) == (65, 0)


def test_loss_in_one_cell_misses_the_target_of_all_cells() -> None:
    closed = {"FCFS": runs_at(100.0), "order": runs_at(200.0), "bandit": runs_at(230.0)}
    opened = {"FCFS": runs_at(100.0), "order": runs_at(200.0), "bandit": runs_at(190.0)}
    keys = keys_of({"8 × 4k": closed, "16 × 4k, open": opened})
    assert keys["bandit_over_order_mean"] > 1
    assert keys["bandit_over_order_least"] == pytest.approx(0.95)
    assert keys["bandit_over_order_everywhere"] == "missed"
    assert keys_of({"8 × 4k": closed, "16 × 4k, open": closed})["bandit_over_order_everywhere"] == "met"


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda one: one.label)
def test_plugin_takes_the_settings_of_each_contender(contender: object) -> None:
    assert contender in CONTENDERS
    settings = read_settings({"plumage": contender.settings()}, {})  # type: ignore[attr-defined]
    assert settings is not None
    assert settings.eviction is not None
    assert settings.eviction.policy == EVICTION_POLICY
    assert settings.batch_limit == BATCH_LIMIT


def test_contenders_differ_by_the_setting_of_their_label() -> None:
    by_label = {one.label: one for one in ALWAYS}
    assert FCFS.settings() == OFF
    assert OFF["feather"] is None
    assert [by_label[label].sorts for label in ("FCFS sorted", "order sorted", "order", "product")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert ORDER.settings()["feather"]["maxWaitSeconds"] == 120
    assert PRODUCT.settings()["feather"]["maxWaitSeconds"] == 10
