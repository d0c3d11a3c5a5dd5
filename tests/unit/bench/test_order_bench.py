"""`vllm-order` and `batching ahead=1`: what their loads have, and what is compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plumage.errors import ConfigurationError
from plumage_bench.benches.batching.ahead import AHEAD, COMPARED
from plumage_bench.benches.batching.engine import Load, play, requests, settings_of
from plumage_bench.benches.vllm_feather.cells import answers, prompts
from plumage_bench.benches.vllm_feather.report import Played
from plumage_bench.benches.vllm_order import loads
from plumage_bench.benches.vllm_order.report import over, report
from plumage_bench.pairs import LEAST_PAIRS

RATES = {"product": 97.0, "oracle": 100.0}


def runs_at(rate: float, after: float | None = None) -> list[Played]:
    runs = [Played(64, 64 / rate, 1.0, (0.1,), (0.01,), 16.0, 0)] * LEAST_PAIRS
    return runs if after is None else [replace(one, after=after) for one in runs]


@pytest.mark.parametrize("cells", [loads.CELLS, loads.QUICK_CELLS], ids=["full", "quick"])
def test_cells_have_what_they_are_named_after(cells: tuple[loads.Cell, ...]) -> None:
    by_name = {cell.name: cell for cell in cells}
    assert (by_name["two levels"].levels, by_name["three levels"].levels) == (2, 3)
    assert len(set(answers(by_name["unequal answers"], 1))) > 10
    assert set(answers(by_name["two levels"], 1)) == {by_name["two levels"].output}
    assert by_name["step"].step > 1
    cold = by_name["cold groups"]
    assert cold.blocks < cold.groups * (cold.prefix // 128)
    assert len({group for group, _ in prompts(cold, 1)}) == cold.groups


def test_product_and_oracle_run_in_every_cell_and_the_ceiling_where_levels_are() -> None:
    assert all(not one.only for one in (*loads.QUICK_CONTENDERS, *loads.CONTENDERS[:-1]))
    assert {one.label for one in loads.QUICK_CONTENDERS} == {"product", "oracle"}
    assert loads.CONTENDERS[-1].homogeneous
    assert loads.CONTENDERS[-1].only == ("two levels", "three levels", "three levels, unequal answers")


def test_unknown_cell_is_named() -> None:
    assert loads.chosen("cell", loads.CELLS, "step;cold groups") == [loads.CELLS[4], loads.CELLS[5]]
    with pytest.raises(ConfigurationError, match="no cell named 'stepp'; there are: two levels"):
        loads.chosen("cell", loads.CELLS, "stepp")


def test_least_cell_is_the_key_and_a_step_counts_from_its_beginning() -> None:
    cells = loads.QUICK_CELLS[:2]
    level = {label: runs_at(rate) for label, rate in RATES.items()}
    step = {"product": runs_at(200.0, after=90.0), "oracle": runs_at(100.0, after=100.0)}
    found = report(cells, loads.QUICK_CONTENDERS, {cells[0].name: level, cells[1].name: step})
    assert found.keys["over_oracle"] == pytest.approx(0.9)
    assert found.keys["over_oracle_pairs"] == LEAST_PAIRS
    assert "over_dfs" not in found.keys
    assert over(level, "product", "oracle").ratio == pytest.approx(0.97)
    (table,) = found.tables
    assert all(len(row) == len(table.columns) for row in table.rows)


@pytest.mark.parametrize("load", AHEAD, ids=lambda one: one.name)
@pytest.mark.parametrize("contender", [COMPARED[1], COMPARED[-3]], ids=lambda one: one.label)
def test_load_is_served(load: Load, contender: object) -> None:
    assert contender in COMPARED
    few = replace(load, count=12, steps=(1e3, 1e6) if load.steps else ())
    assert play(few, contender, 1).throughput > 0


def test_answers_and_groups_are_as_unequal_as_the_load_says() -> None:
    load = next(one for one in AHEAD if one.skew and one.outputs)
    made = requests(load, 1)
    least, most = load.outputs or (0, 0)
    assert least <= min(one.output_tokens for one in made) < max(one.output_tokens for one in made) <= most
    sizes = [sum(one.group == group for one in made) for group in range(load.groups)]
    assert sizes[0] > 3 * sizes[-1]


def test_queue_of_the_lab_has_no_bound_that_is_reached() -> None:
    by_label = {one.label: settings_of(AHEAD[0], one) for one in COMPARED}
    assert by_label["product"].queue_options["max_wait"] == 10
    assert by_label["oracle"].queue_options == {"max_wait": 86_400}
    assert by_label["oracle"].queue.endswith(":Oracle")
