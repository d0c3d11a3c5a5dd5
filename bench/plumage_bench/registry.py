"""Benchmarks by name; a module is imported only when its benchmark is asked for."""

from __future__ import annotations

import importlib

from plumage.errors import ConfigurationError
from plumage_bench.harness import Benchmark

__all__ = ["NAMES", "load"]

NAMES = (
    "gsp", "multiturn", "longdoc", "fewshot", "trace", "cht", "decision", "eviction", "mrc", "directory", "router",
)  # fmt: skip


def load(name: str) -> Benchmark:
    """The benchmark called `name`; ConfigurationError names the known ones."""
    if name not in NAMES:
        raise ConfigurationError(f"no benchmark named {name!r}; there are: {', '.join(NAMES)}")
    module = importlib.import_module(f"plumage_bench.{name}")
    bench: Benchmark = module.BENCH
    return bench
