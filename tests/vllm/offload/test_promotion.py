"""Hot prefixes are promoted while requests decode. A reset during a promotion does no harm."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.offload_tier import Tier, chain
from vllm.config import KVEventsConfig

from plumage.tiering import PromotionTurn
from plumage_bench.vllm.pretend import PAGE
from plumage_engine.vllm.offload.promotion.promoter import _prefill


def warm(model: Path, *, blocks: int = 24, salt: str | None = None, **named: Any) -> Tier:
    """A tier whose prefix 0, with four blocks, was used five times, is in host memory, and has been evicted from the
    device. Nothing was promoted before."""
    tier = Tier(model, blocks=blocks, min_frequency=2, **named)
    turn = SimpleNamespace(step=lambda prefill_tokens: False)
    if tier.promoter is not None:
        tier.promoter._turn, turn = turn, tier.promoter._turn
    for number in range(5):
        tier.serve(f"hot{number}", chain(0, 4) + chain(100 + number, 1), salt=salt)
    for number in range(4):
        tier.serve(f"cold{number}", chain(200 + number, 6))
    for key in reversed(tier.engine.requests["hot0"].block_hashes):
        for block in tier.engine.pool.get_cached_block(key, [0]) or ():
            tier.engine.pool.evict_blocks({block.block_id})
    assert tier.in_device("hot0") == 0
    assert len(tier.manager.residents) == 4
    if tier.promoter is not None:
        tier.promoter._turn = turn
    return tier


def decode(tier: Tier, name: str = "decodes", tokens: int = 30) -> None:
    """A request that computes one block and then generates this many tokens."""
    tier.serve(name, chain(300, 1)[:-1], tokens)


@pytest.mark.parametrize("eviction", [None, "Hotness", "Rlt"])
def test_hot_prefix_is_promoted_before_request(tiny_model: Path, eviction: str | None) -> None:
    tier = warm(tiny_model, eviction=eviction)
    decode(tier)
    assert tier.in_device("hot0") == 4
    assert tier.counters.get("promotions") == tier.engine.promoted_blocks == 4
    tier.serve("asks", chain(0, 4) + chain(400, 1))
    assert tier.engine.cached["asks"] == (128, 0)
    assert tier.counters.get("promotions_used") == 4
    tier.check_idle()


def test_evictions_for_promotion_are_counted(tiny_model: Path) -> None:
    """Also with vLLM's own eviction order."""
    tier = warm(tiny_model)
    own, gone = tier.engine.pool.evict_blocks, list[int]()

    def evict(blocks: set[int]) -> None:
        gone.extend(blocks)
        own(blocks)

    tier.engine.pool.evict_blocks = evict
    tier.serve("fills", chain(600, 20))
    decode(tier)
    assert tier.in_device("hot0") == 4
    assert tier.counters.get("evictions", "promotion") == len(gone) > 0


def test_request_without_promotion_waits_for_copy(tiny_model: Path) -> None:
    tier = warm(tiny_model, promotion="Off")
    decode(tier)
    tier.serve("asks", chain(0, 4) + chain(400, 1))
    assert tier.engine.cached["asks"] == (0, 128)
    assert tier.engine.promoted_blocks == 0


def test_promotion_evicts_only_colder_blocks(tiny_model: Path) -> None:
    tier = warm(tiny_model)
    for turn in range(9):
        for number in range(4):
            tier.serve(f"hotter{turn}-{number}", chain(200 + number, 5) + chain(900 + 4 * turn + number, 1)[:8])
    before = [tier.in_device(f"hotter8-{number}") for number in range(4)]
    decode(tier)
    assert [tier.in_device(f"hotter8-{number}") for number in range(4)] == before == [5] * 4


@pytest.mark.parametrize("eviction", [None, "Hotness"])
def test_promotion_evicts_coldest_block(tiny_model: Path, eviction: str | None) -> None:
    """The block that has been idle longest is the hottest here, and stays. The evicted one was used once, recently."""
    tier = Tier(tiny_model, blocks=24, min_frequency=2, eviction=eviction)
    turn, tier.promoter._turn = tier.promoter._turn, SimpleNamespace(step=lambda prefill_tokens: False)
    for number in range(5):
        tier.serve(f"medium{number}", chain(0, 4) + chain(100 + number, 1)[:8])
    for number in range(12):
        tier.serve(f"hot{number}", chain(1, 5) + chain(200 + number, 1)[:8])
    for key in reversed(tier.engine.requests["medium0"].block_hashes[:4]):
        for block in tier.engine.pool.get_cached_block(key, [0]) or ():
            tier.engine.pool.evict_blocks({block.block_id})
    for number in range(5):
        tier.serve(f"once{number}", chain(300 + number, 3))
    assert (tier.in_device("hot0"), tier.in_device("medium0")) == (5, 0)
    tier.promoter._turn = turn
    decode(tier)
    assert (tier.in_device("hot0"), tier.in_device("medium0")) == (5, 4)
    tier.check_idle()


def test_unused_promotions_stop_for_large_plans(tiny_model: Path) -> None:
    tier = warm(tiny_model)
    promoter = tier.promoter
    promoter._promote = lambda chunks: (
        promoter._unused.update(
            {
                f"{promoter.worth.rests} {number} {len(promoter._unused)}".encode(): promoter.worth
                for number in range(256)
            }
        )
        or 256
    )
    for turn in range(8):
        tier.serve(f"decodes{turn}", chain(300 + turn, 1)[:-1], 4)
    assert promoter.worth.rests
    assert len(promoter._unused) <= 512


def test_plan_is_bounded_and_starts_at_root(tiny_model: Path) -> None:
    tier = warm(tiny_model, promotion_tokens=64)
    tier.engine.add("decodes", chain(300, 1)[:-1], 8)
    seen = set()
    while tier.engine.scheduler.has_requests():
        tier.engine.step()
        seen.add(tier.in_device("hot0"))
    assert seen == {0, 2}
    decode(tier, "again")
    assert tier.in_device("hot0") == 4


@pytest.mark.parametrize(("allowed", "most"), [(2 * PAGE, 2), (3 * PAGE + 1, 3), (1, 1)])
def test_plan_is_bounded_by_bytes(tiny_model: Path, allowed: int, most: int) -> None:
    """Each step may promote, and a copy takes several steps. A block that exceeds the bound is copied alone."""
    tier = warm(tiny_model, promotion_bytes=allowed)
    tier.promoter._turn = SimpleNamespace(step=lambda prefill_tokens: True)
    tier.engine.promotion_steps = 5
    tier.engine.add("decodes", chain(300, 1)[:-1], 60)
    seen = set()
    while tier.engine.scheduler.has_requests():
        tier.engine.step()
        seen.add(tier.engine.promoting)
    assert max(seen) == most
    assert tier.in_device("hot0") == 4
    tier.check_idle()


def test_promotion_runs_if_every_step_has_prefill(tiny_model: Path) -> None:
    """Beside a decoding request there is a prompt in each step. No step copies more than a plan may."""
    tier = warm(tiny_model, promotion_tokens=64, promotion_lookahead=0)
    tier.promoter._turn = PromotionTurn()
    tier.engine.add("decodes", chain(300, 1)[:-1], 200)
    copied = []
    for number in range(80):
        before = tier.engine.promoted_blocks
        tier.engine.add(f"prompt{number}", chain(1000 + number, 1)[:20], 1)
        assert _prefill(tier.engine.step()) > 0
        tier.check()
        copied.append(tier.engine.promoted_blocks - before)
    assert sum(copied[:31]) == 0, "a step without a prefill was to be waited for"
    assert max(copied) * tier.engine.block_size == 64
    assert tier.counters.get("promotions") == 4
    assert tier.in_device("hot0") == 4


def test_request_waits_for_running_promotion(tiny_model: Path) -> None:
    tier = warm(tiny_model)
    _begin(tier)
    tier.engine.add("asks", chain(0, 4) + chain(400, 1), 2)
    tier.engine.finish()
    assert tier.engine.cached["asks"] == (128, 0)
    assert tier.engine.loaded_blocks == 0
    tier.check_idle()


@pytest.mark.parametrize("host", [True, False])
def test_reset_abandons_running_promotion(tiny_model: Path, host: bool) -> None:
    tier = warm(tiny_model)
    _begin(tier)
    tier.engine.abort("decodes")
    tier.engine.step()
    assert tier.promoter.pending
    assert tier.engine.reset(host=host)
    assert tier.counters.get("promotions_abandoned") == 4
    tier.check()
    late = next(iter(tier.promoter._flush))
    tier.engine.add("after", chain(500, 7), 2)  # takes the same blocks to which the copy will be written
    tier.engine.step()
    assert late not in tier.engine.copies
    tier.engine.finish()
    tier.check_idle()
    assert len(tier.manager.residents) == (0 if host else 4)


@pytest.mark.parametrize("method", ["_send_flush", "_take_flush"])
def test_failed_flush_is_sent_later(tiny_model: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Then promotion is off, and the engine continues."""
    tier = warm(tiny_model)
    late = _begin(tier)
    tier.engine.abort("decodes")
    own, failures = getattr(tier.promoter, method), [RuntimeError("made to fail")]

    def fail_once() -> None:
        if failures:
            raise failures.pop()
        own()

    monkeypatch.setattr(tier.promoter, method, fail_once)
    assert tier.engine.reset()
    tier.engine.step()
    assert not tier.guard.on
    assert tier.counters.get("failures", "promotion") == 1
    tier.serve("after", chain(500, 7))  # takes the same blocks to which the copy would have been written
    assert late not in tier.engine.copies
    assert tier.engine.pool.get_num_free_blocks() == tier.engine.pool.num_gpu_blocks - 1
    assert not tier.promoter.pending


def test_sleep_during_transfer_frees_blocks(tiny_model: Path) -> None:
    """vLLM's sleep aborts, then resets all caches, and fails if a block is in use."""
    tier = warm(tiny_model)
    _begin(tier)
    tier.engine.abort("decodes")
    assert tier.engine.reset(running=True, host=True)
    assert tier.engine.reset(running=True, host=True)
    tier.engine.finish()
    tier.check_idle()


def test_promotion_ends_after_last_worker(tiny_model: Path) -> None:
    tier = warm(tiny_model)
    tier.connector.config = tier.connector.config._replace(num_workers=2)
    number = _begin(tier)
    job = tier.promoter._jobs[number]
    tier.engine.copies[number].steps = 0
    tier.engine.step()
    assert tier.promoter._jobs[number].left == 1
    assert job.blocks[0].ref_cnt == 1
    tier.connector.config = tier.connector.config._replace(num_workers=1)
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

    tier.promoter.ended(
        SimpleNamespace(finished_recving=None, kv_connector_worker_meta=OffloadingWorkerMetadata({number: 1}))
    )
    assert number not in tier.promoter._jobs
    assert tier.in_device("hot0") == 4


def test_events_of_promoted_blocks_have_their_tokens_and_salt(tiny_model: Path) -> None:
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    tier = warm(tiny_model, salt="ours", arguments={"kv_events_config": events})
    events_sent: list[Any] = []
    tier.engine.scheduler.kv_event_publisher.publish = lambda batch: events_sent.extend(batch.events)
    decode(tier)
    hashes = tier.engine.requests["hot0"].block_hashes
    ours = {int.from_bytes(one[-8:], "big"): place for place, one in enumerate(hashes)}
    stored = [
        e for e in events_sent if type(e).__name__ == "BlockStored" and e.medium == "GPU" and e.block_hashes[0] in ours
    ]
    assert [ours[event.block_hashes[0]] for event in stored] == [0, 1, 2, 3]
    assert [token for event in stored for token in event.token_ids] == list(chain(0, 4))
    assert [event.parent_block_hash for event in stored] == [None, *(event.block_hashes[0] for event in stored[:3])]
    assert [event.extra_keys for event in stored] == [[("ours",)], [None], [None], [None]]


def test_unused_promotions_pause_promotion(tiny_model: Path) -> None:
    tier = warm(tiny_model)
    tier.promoter.worth.count_outcomes(wasted=256)
    decode(tier)
    assert tier.engine.promoted_blocks == 0
    tier.promoter._unused[b"\0" * 36] = tier.promoter.worth
    decode(tier, "again")
    assert tier.counters.get("promotions_wasted") == 1


def test_failure_disables_only_promotion(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = warm(tiny_model)

    def fail(limit: int) -> list[Any]:
        raise RuntimeError("no such list")

    monkeypatch.setattr(tier.promoter._device, "leaves", fail)
    decode(tier)
    assert not tier.guard.on
    assert tier.counters.get("failures", "promotion") == 1
    tier.serve("asks", chain(0, 4) + chain(400, 1))
    assert tier.engine.cached["asks"] == (0, 128)
    assert tier.engine.pool.get_num_free_blocks() == tier.engine.pool.num_gpu_blocks - 1


def test_unsupported_promotion_keeps_host_tier(tiny_model: Path) -> None:
    tier = Tier(tiny_model, connector={"blocks_per_chunk": 2}, chunks=40, min_frequency=1)
    assert not tier.guard.on
    assert "chunks of one block" in tier.guard.reason
    tier.serve("a", chain(0, 4))
    assert len(tier.manager.residents) == 2


def test_draft_tokens_are_no_prefill() -> None:
    drafts = {"b": [1, 2, 3]}
    output = SimpleNamespace(num_scheduled_tokens={"a": 1, "b": 4, "c": 7}, scheduled_spec_decode_tokens=drafts)
    assert _prefill(output) == 7


def _begin(tier: Tier) -> int:
    """Step until a long promotion runs. Returns its job."""
    tier.engine.promotion_steps = 50
    tier.engine.add("decodes", chain(300, 1)[:-1], 30)
    for _ in range(10):
        tier.engine.step()
        for number in tier.promoter._jobs:
            return number
    raise AssertionError("nothing was promoted")
