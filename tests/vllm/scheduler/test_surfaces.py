"""The vLLM that is installed here has all that the plugin hooks, by its sources and by its live objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import vllm

from plumage_bench.vllm_engine import Engine, plugin_arguments
from plumage_engine.vllm.compat.sources import Sources, moved


def test_nothing_is_missing_in_the_sources() -> None:
    assert moved(Sources(Path(vllm.__file__).parents[1])) == []


def test_every_feature_is_on(start_engine: Callable[..., Engine]) -> None:
    guards = start_engine(**plugin_arguments({})).scheduler.plumage.guards
    assert {"feather", "batchLimit"} <= set(guards)
    assert all(guard.on for guard in guards.values()), {name: guard.reason for name, guard in guards.items()}
