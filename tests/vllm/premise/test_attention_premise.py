"""`bench attention-premise` on a CPU: both timed variants compute the same numbers."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from plumage.errors import ConfigurationError
from plumage_bench.benches import attention_premise
from plumage_bench.benches.attention_premise import kernels as attention_kernels
from plumage_bench.benches.attention_premise.kernels import BLOCK, Shape
from plumage_bench.device import CPU, check_device
from plumage_bench.harness import Context

_SMALL = Shape(heads=4, kv_heads=2, head_size=64, layers=2)


@pytest.mark.parametrize("vllm", [True, False])
def test_shared_prefix_equals_copied_prefix(monkeypatch: pytest.MonkeyPatch, vllm: bool) -> None:
    if not vllm:
        monkeypatch.setattr(attention_kernels, "find_spec", lambda name: None)
    kernel, cases, step = attention_kernels.make_step(CPU, _SMALL, 3, 4 * BLOCK)
    assert kernel == ("vLLM, paged" if vllm else "torch, contiguous")
    assert len(cases) == (4 if vllm else 2)
    for case in cases[1:]:
        for shared, other in zip(step(cases[0]), step(case), strict=True):
            assert shared.numel() == 3 * 4 * 64
            assert torch.equal(shared, other)
            assert shared.float().std() > 0


def test_quick_run_reports_all_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attention_premise.SHAPES, CPU, _SMALL)
    context = Context("attention-premise", True, 1, tmp_path, Console(file=io.StringIO()))
    report = attention_premise.run(context)
    (table,) = report.tables
    assert len(table.rows) == 4
    assert (report.keys["wrong"], report.keys["prefix"], report.keys["batch"]) == (0, 4096, 16)
    assert all(len(cell["different"]) == attention_premise.PAIRS_QUICK for cell in report.data["seconds"])


def test_missing_gpu_is_refused() -> None:
    if torch.cuda.is_available():
        check_device("cuda")
    else:
        with pytest.raises(ConfigurationError, match="finds no GPU it can use"):
            check_device("cuda")
