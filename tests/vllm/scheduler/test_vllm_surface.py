"""The installed vLLM has everything that the plugin hooks, by its sources and by its live objects."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
import vllm

from plumage_bench.vllm.engine import Engine, plugin_arguments
from plumage_bench.vllm_sources.check import moved
from plumage_bench.vllm_sources.tree import Sources

ROOT = Path(vllm.__file__).parents[1]


@pytest.fixture(scope="module")
def sources() -> Sources:
    """The installed vLLM's. Each module is parsed once."""
    return Sources(ROOT)


def test_vllm_sources_have_all_hooked_names(sources: Sources) -> None:
    assert moved(sources) == []


OFFLOAD, UTILS = "vllm.v1.kv_offload", "vllm.v1.core.kv_cache_utils"


@pytest.mark.parametrize(
    ("module", "old", "new", "message"),
    [
        (f"{OFFLOAD}.cpu.manager", "num_chunks: int,", "chunks: int,", "CPUOffloadingManager.__init__ takes no num_"),
        (f"{OFFLOAD}.cpu.manager", "num_chunks: int,", "num_chunks: int, owner: str,", ".__init__ wants owner"),
        (f"{OFFLOAD}.cpu.policies.lru", "cache_capacity: int", "room: int", "LRUCachePolicy.__init__ takes no cache_"),
        (
            f"{OFFLOAD}.base",
            "keys_to_store:",
            "owner: str\n    keys_to_store:",
            "PrepareStoreOutput.__init__ wants owner",
        ),
        ("vllm.distributed.kv_events", "lora_id: int | None", "owner: str", "BlockStored.__init__ takes no lora_id"),
        (UTILS, "def make_block_hash_with_group_id(", "def make_block_hash_with_group_id(salt, ", "wants group_id"),
    ],
)
def test_changed_source_is_named(sources: Sources, module: str, old: str, new: str, message: str) -> None:
    text = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text()
    assert old in text
    tree, changed = ast.parse(text.replace(old, new)), Sources(ROOT)
    changed.tree = lambda name: tree if name == module else sources.tree(name)
    assert any(message in line for line in moved(changed))


def test_every_feature_is_on(start_engine: Callable[..., Engine]) -> None:
    guards = start_engine(**plugin_arguments({"feather": {"orderBatch": True}})).scheduler.plumage.guards
    assert {"feather", "batchLimit", "batchOrder"} <= set(guards)
    assert all(guard.on for guard in guards.values()), {name: guard.reason for name, guard in guards.items()}
