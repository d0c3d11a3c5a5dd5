"""`kv_transfer_params` of a request: with Plumage's tiers too, vLLM follows valid ones and ignores invalid ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from support.offload_tier import SENT, Tier, chain


def evicted(model: Path, **named: Any) -> Tier:
    """A tier with a prefix of four blocks in host memory that was evicted from the device. Nothing is promoted."""
    tier = Tier(model, blocks=24, min_frequency=2, promotion="Off", **named)
    for number in range(2):
        tier.serve(f"hot{number}", chain(0, 4) + chain(100 + number, 1)[:-1])
    tier.engine.scheduler.reset_prefix_cache(False, False)
    assert len(tier.manager.residents) == 4
    return tier


def found(tier: Tier, prefix: int, sent: Mapping[str, Any]) -> int:
    """Tokens of the prefix that are loaded for a request with these parameters."""
    name = f"asks {prefix} {tier.engine.steps}"
    tier.serve(name, chain(prefix, 4) + chain(200 + tier.engine.steps, 1)[:-1], sent=sent)
    tier.check()
    return tier.engine.cached[name][1]


@pytest.mark.parametrize(
    ("sent", "tokens"),
    [
        ({"max_load_tokens": 0}, 0),
        ({"max_load_tokens": 31}, 0),
        ({"max_load_tokens": 95}, 64),
        ({"max_load_tokens": 2**63}, 128),
        ({"max_load_tokens": "0"}, 128),
        ({"max_load_tokens": 0, "max_offload_tokens": 0}, 0),
        ({"kv_load_tiers": []}, 128),  # a filter applies to the tiers below host memory
        ({}, 128),
    ],
)
def test_client_bounds_loaded_tokens(tiny_model: Path, sent: Mapping[str, Any], tokens: int) -> None:
    tier = evicted(tiny_model)
    assert found(tier, 0, sent) == tokens
    tier.check_idle()


@pytest.mark.parametrize(
    ("sent", "blocks"),
    [
        ({"max_offload_tokens": 0}, 0),
        ({"max_offload_tokens": 95}, 2),
        ({"max_offload_tokens": True}, 4),
        ({"max_load_tokens": 0}, 4),
        ({}, 4),
    ],
)
def test_client_bounds_stored_blocks(tiny_model: Path, sent: Mapping[str, Any], blocks: int) -> None:
    """Afterwards another request for the same finds these blocks, and stores the rest."""
    tier = Tier(tiny_model, blocks=24, min_frequency=1, promotion="Off")
    tier.serve("asks", chain(0, 4), sent=sent)
    assert len(tier.manager.residents) == blocks
    tier.engine.scheduler.reset_prefix_cache(False, False)
    tier.serve("another", chain(0, 4) + chain(1, 1)[:-1])
    assert tier.engine.cached["another"][1] == 32 * blocks
    assert len(tier.manager.residents) == 4
    tier.check_idle()


def in_memory(tier: Tier) -> int:
    """Tokens of prefix 0 that are in host memory, from its beginning."""
    names = tier.engine.requests["0.0"].block_hashes
    return 32 * len(list(takewhile(lambda name: tier.manager.residents.get(name + bytes(4)) is not None, names)))


class TestDisk:
    @pytest.fixture
    def tier(self, tiny_model: Path, tmp_path: Path) -> Iterator[Tier]:
        """Host memory has the first block of prefix 0, or two of four: it depends on when copies end. The disk has
        all."""
        made = Tier(tiny_model, blocks=17, chunks=16, disk=(tmp_path / "kv", 64), promotion="Off", min_frequency=1)
        for prefix in range(9):
            for turn in range(3):
                made.serve(f"{prefix}.{turn}", chain(prefix, 4))
                made.finish_transfers()
        assert in_memory(made) in (32, 64)
        assert {name + bytes(4) for name in made.engine.requests["0.0"].block_hashes} <= set(made.disk._slot_of)
        yield made
        made.close()

    @pytest.mark.parametrize(
        ("sent", "tokens"),
        [
            ({"kv_load_tiers": []}, None),
            ({"kv_load_tiers": [{"medium": "CPU"}]}, None),
            ({"kv_load_tiers": [{"medium": "storage"}]}, 128),
            ({"kv_load_tiers": [{"medium": "STORAGE"}], "max_load_tokens": 96}, 96),
            ({"kv_load_tiers": [{"medium": "TAPE"}, 7]}, 128),
            ({"kv_load_tiers": "STORAGE"}, 128),
        ],
    )
    def test_client_decides_disk_reads(self, tier: Tier, sent: Mapping[str, Any], tokens: int | None) -> None:
        """tokens: None for what host memory has."""
        read, held = tier.counters.get("disk_reads"), in_memory(tier)
        assert found(tier, 0, sent) == (tokens or held)
        assert (tier.counters.get("disk_reads") > read) == (tokens is not None)
        tier.finish_transfers()
        tier.check_idle()

    def test_disk_reads_differ_between_concurrent_clients(self, tier: Tier) -> None:
        """All concurrently, one request for each parameter."""
        read = tier.counters.get("disk_reads")
        for number, sent in enumerate(SENT):
            tier.engine.add(f"r{number}", chain(number % 3, 4) + chain(300 + number, 1)[:-1], 2, sent=sent)
        tier.engine.finish()
        tier.finish_transfers()
        tier.check_idle()
        assert all(request.is_finished() for request in tier.engine.requests.values())
        assert tier.counters.get("disk_reads") > read
