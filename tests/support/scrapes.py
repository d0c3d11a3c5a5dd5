"""Checks a page of metrics as Prometheus reads it."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from support.needs import missing

__all__ = ["families", "lint"]


def families(page: str) -> dict[str, Metric]:
    """The metrics by name as written; a gauge and a counter may differ only in `_total`. Checks that each has a type
    and a description, appears once, and has no duplicate sample. No counter is negative, and histogram buckets add
    up."""
    _described_once(page)
    found: dict[str, Metric] = {}
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert name not in found, f"{name} is there twice"
        assert family.type in ("counter", "gauge", "histogram"), family
        assert family.documentation, family
        samples = [(sample.name, *sorted(sample.labels.items())) for sample in family.samples]
        assert len(set(samples)) == len(samples), family
        if family.type == "counter":
            assert all(sample.name == name and sample.value >= 0 for sample in family.samples), family
        elif family.type == "histogram":
            _add_up(family)
        found[name] = family
    return found


def lint(page: str) -> list[str]:
    """The findings of `promtool check metrics`, one a line."""
    promtool = shutil.which("promtool")
    if promtool is None:
        missing("promtool", "install Debian's package prometheus, or put promtool from Prometheus' release on PATH")
    command = [promtool, "check", "metrics"]
    done = subprocess.run(command, check=False, input=page, capture_output=True, text=True, timeout=30)
    return (done.stdout + done.stderr).splitlines()


def _described_once(page: str) -> None:
    """The text format allows one HELP and one TYPE line for each name. The parser here accepts more."""
    lines = [tuple(line.split(maxsplit=3)[1:3]) for line in page.splitlines() if line.startswith("#")]
    twice = [line for line, count in Counter(lines).items() if count > 1 and line[0] in ("HELP", "TYPE")]
    assert not twice, twice


def _add_up(family: Metric) -> None:
    """Checks each histogram: bounds and counts ascend, the last bucket has no bound, and it counts all."""
    series: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = tuple(sorted((key, value) for key, value in sample.labels.items() if key != "le"))
        series.setdefault(labels, []).append(sample)
    for samples in series.values():
        by_name = {sample.name.removeprefix(f"{family.name}_"): sample.value for sample in samples}
        buckets = [sample for sample in samples if "le" in sample.labels]
        _ascend([float(sample.labels["le"]) for sample in buckets], strictly=True)
        _ascend([sample.value for sample in buckets], strictly=False)
        assert buckets[-1].labels["le"] == "+Inf", family
        assert buckets[-1].value == by_name["count"], family
        assert "sum" in by_name, family


def _ascend(values: Sequence[float], *, strictly: bool) -> None:
    assert all(low < high or (low == high and not strictly) for low, high in pairwise(values)), values
