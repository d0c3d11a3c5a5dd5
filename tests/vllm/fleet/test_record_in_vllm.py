"""The record of cached blocks under real vLLM: at any moment it equals the content of vLLM's block pool."""

from __future__ import annotations

import gc
import random
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from plumage_bench.vllm.engine import Engine, Prompt, plugin_arguments
from plumage_bench.vllm.pretend import host_tier_arguments
from plumage_engine.kv_events import Row, Snapshot, decode_snapshot

BLOCK = 32


@pytest.fixture
def start(start_engine: Callable[..., Engine], tmp_path: Path) -> Callable[..., Engine]:
    def begin(**more: Any) -> Engine:
        events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"ipc://{tmp_path}/events"}
        return start_engine(
            **{"kv_events_config": events, "num_gpu_blocks_override": 60, **plugin_arguments({}), **more}
        )

    return begin


def prompts(seed: int, count: int = 60) -> list[Prompt]:
    """Groups of shared prefixes, more than 60 blocks have room for. If a prompt is cached completely, vLLM computes its
    last block again, beside the cached one."""
    rng = random.Random(seed)
    shared = [tuple(rng.choices(range(256), k=BLOCK * rng.randrange(2, 8))) for _ in range(6)]
    made = []
    for number in range(count):
        tokens = rng.choice(shared) + tuple(rng.choices(range(256), k=rng.choice((0, 2, 40, 80))))
        abort = rng.randrange(12) if rng.random() < 0.1 else None
        made.append(Prompt(f"{seed}-{number}", tokens, rng.randrange(4, 50), rng.randrange(12), abort))
    return made


def snapshot(engine: Engine) -> Snapshot:
    status, body = engine.core.plumage("snapshot", b"").result()
    assert status == 200
    return decode_snapshot(body)


def copies(rows: list[Row]) -> Counter[Any]:
    return Counter({row.block_hash: row.copies for row in rows})


def held(engine: Engine) -> Counter[Any]:
    """Copies by hash, as the pool has them."""
    from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

    blocks = (block for block in engine.pool.blocks if block.block_hash is not None)
    return Counter(maybe_convert_block_hash(get_block_hash(block.block_hash)) for block in blocks)


def pending(engine: Engine) -> Counter[Any]:
    """What unpublished events will add."""
    change: Counter[Any] = Counter()
    for event in engine.pool.kv_event_queue:
        by = 1 if type(event).__name__ == "BlockStored" else -1
        for block_hash in event.block_hashes:
            change[block_hash] += by
    return change


def test_record_lists_cached_blocks_after_each_step(start: Callable[..., Engine]) -> None:
    engine = start()
    looks = Counter[str]()
    own = engine.scheduler.update_from_output

    def stepped(*args: Any) -> Any:
        result = own(*args)
        rows, real = snapshot(engine), held(engine)
        expected = Counter(real)
        expected.subtract(pending(engine))
        assert copies(rows.blocks) == +expected
        looks["steps"] += 1
        looks["copies"] += max(real.values(), default=0) > 1
        return result

    engine.scheduler.update_from_output = stepped
    run = engine.serve(prompts(1))
    assert run.preemptions, "60 blocks were to be too few"
    assert looks["copies"], "no block was cached twice"
    record = engine.scheduler.routes.record
    assert (record.missing, record.strays) == (0, 0)


def test_record_has_token_ids_of_requests(start: Callable[..., Engine]) -> None:
    engine, wanted = start(), [prompt for prompt in prompts(2) if prompt.abort is None]
    answers = engine.serve(wanted).answers
    rows = {row.block_hash: row for row in snapshot(engine).blocks}
    texts = {(*prompt.tokens, *answers[prompt.name].tokens) for prompt in wanted}
    whole = 0
    for row in rows.values():
        ids: tuple[int, ...] = ()
        at: Row | None = row
        while at is not None:
            ids = (*at.token_ids, *ids)
            if at.parent is None:
                whole += 1
                assert any(text[: len(ids)] == ids for text in texts)
                break
            at = rows.get(at.parent)
    assert whole > 20


def ask(engine: Engine, name: str, count: int, **named: Any) -> None:
    """One request of `count` token ids, until its end."""
    from vllm import SamplingParams

    wanted = SamplingParams(max_tokens=2, ignore_eos=True, temperature=0.0, extra_args=named.pop("extra", None))
    engine.llm.add_request(name, {"prompt_token_ids": list(range(count)), **named}, wanted)
    while engine.llm.has_unfinished_requests():
        engine.llm.step()


def test_record_of_one_request(start: Callable[..., Engine]) -> None:
    engine = start()
    ask(engine, "salted", 100, cache_salt="secret")
    snap = snapshot(engine)
    assert snap.block_size == BLOCK
    assert snap.seq == engine.scheduler.routes.next_sequence - 1 >= 0
    assert [row.extra_keys for row in snap.blocks] == [["secret"], None, None]
    for number in range(3):  # on a client's wish vLLM reports reused blocks again, as if they were new
        ask(engine, f"report-{number}", 90, extra={"kv_cache_report_mode": "full"})
    assert engine.scheduler.routes._repeats == set()
    assert set(copies(snapshot(engine).blocks).values()) == {1}
    assert engine.core.reset_prefix_cache()
    ask(engine, "after", 70)
    assert [row.extra_keys for row in snapshot(engine).blocks] == [None, None]


def sleep(engine: Engine) -> None:
    engine.core.sleep(1)
    assert engine.core.wake_up()


def test_sent_snapshot_is_released(start: Callable[..., Engine]) -> None:
    engine = start()
    ask(engine, "one", 100)
    first = engine.core.plumage("snapshot", b"")
    first.result(60)
    sent = weakref.ref(first)
    del first
    for _ in range(100):  # the thread that encoded it releases it after its answer
        if sent() is None:
            break
        time.sleep(0.05)
        gc.collect()
    assert sent() is None
    assert len(snapshot(engine).blocks) == 3


def test_unusable_body_is_refused_without_failure(start: Callable[..., Engine]) -> None:
    engine = start(**plugin_arguments({"feather": {"policy": "Bandit"}}), **host_tier_arguments(64))
    deep = b"[" * 100_000
    for name, body in (
        ("feather", deep),
        ("feather", b'{"options": {"order": ' + deep),
        ("feather", b'{"options": {"max_wait": 5}}'),
        ("feather", b'{"options": {"rng": 1}}'),
        ("learn", deep),
        ("learn", b'{"fingerprint": "", "policy": "", "rows": [], "more": ' + deep),
        ("promote", b'{"uses": {"1": 1}, "more": ' + deep),
    ):
        status, answer = engine.core.plumage(name, body)
        assert status == 400, (name, body[:40], answer)
        assert msgspec.json.decode(answer)["error"]["message"]
    plumage = engine.scheduler.plumage
    assert [row for row in plumage.counters.rows() if row[0] == "failures"] == []
    assert plumage.counters.get("tables_refused") == 2
    assert all(guard.on for guard in plumage.guards.values())


def test_idle_engine_lists_nothing_after_reset(start: Callable[..., Engine]) -> None:
    """vLLM itself would publish it with the next step."""
    engine = start()
    for name, forget in (("reset", engine.core.reset_prefix_cache), ("sleep", lambda: sleep(engine))):
        ask(engine, name, 100)
        before = snapshot(engine)
        assert copies(before.blocks) == held(engine)
        assert len(before.blocks) == 3
        forget()
        after = snapshot(engine)
        assert (after.blocks, after.seq) == ([], before.seq + 1)
    record = engine.scheduler.routes.record
    assert (record.missing, record.strays) == (0, 0)


def test_unreported_reset_ends_snapshots(start: Callable[..., Engine]) -> None:
    engine = start()
    ask(engine, "before", 100)
    engine.scheduler.connector = object()  # has no method to take events
    assert engine.core.reset_prefix_cache()
    engine.scheduler.connector = None
    assert engine.core.plumage("snapshot", b"")[0] == 404
    assert not engine.scheduler.plumage.guards["record"].on
    ask(engine, "after", 100)
    assert len(held(engine)) == 3


def test_record_needs_events(start: Callable[..., Engine]) -> None:
    engine = start(kv_events_config=None)
    status, body = engine.core.plumage("snapshot", b"")
    assert status == 404
    assert "kv-events-config" in msgspec.json.decode(body)["error"]["message"]
    assert "record" not in engine.scheduler.plumage.guards


def test_record_failure_ends_only_snapshots(start: Callable[..., Engine]) -> None:
    engine, wanted = start(), prompts(4, 12)
    engine.scheduler.routes.record.stored = None  # not callable
    answers = engine.serve(wanted).answers
    assert all(answers[prompt.name].finished for prompt in wanted if prompt.abort is None)
    assert engine.core.plumage("snapshot", b"")[0] == 404
    assert not engine.scheduler.plumage.guards["record"].on
    assert engine.scheduler.plumage.counters.get("failures", "record") == 1


def test_repeat_failure_ends_only_snapshots(start: Callable[..., Engine]) -> None:
    engine = start()
    ask(engine, "one", 90)
    engine.scheduler.routes._repeats = None
    ask(engine, "again", 90, extra={"kv_cache_report_mode": "full"})
    assert engine.core.plumage("snapshot", b"")[0] == 404
    assert not engine.scheduler.plumage.guards["record"].on
    assert engine.scheduler.plumage.counters.get("failures", "record") == 1
    assert len(held(engine)) == 2


def test_tables_are_served_merged_and_checked(start: Callable[..., Engine]) -> None:
    engine = start(**plugin_arguments({"feather": {"policy": "Bandit"}}))
    engine.serve(prompts(5))
    status, body = engine.core.plumage("tables", b"")
    assert status == 200
    table = msgspec.json.decode(body)
    assert table["rows"], "60 requests must fill the table"
    other = start(**plugin_arguments({"feather": {"policy": "Bandit"}}))
    assert other.core.plumage("learn", body) == (204, b"")
    learned = msgspec.json.decode(other.core.plumage("tables", b"")[1])
    assert learned["fingerprint"] == table["fingerprint"]
    assert learned["rows"] == table["rows"]
    assert learned["life"] != table["life"]
    for bad, expected in (
        (b"\xc1", 400),
        (body[:-9], 400),
        (msgspec.json.encode({**table, "rows": [[1, 1, 1, "add", -1.0, 0.0]]}), 400),
        (msgspec.json.encode({**table, "fingerprint": "other"}), 409),
        (msgspec.json.encode({**table, "policy": "QLearning"}), 409),
    ):
        assert other.core.plumage("learn", bad)[0] == expected, bad
    assert msgspec.json.decode(other.core.plumage("tables", b"")[1])["rows"] == table["rows"]
    counters = other.scheduler.plumage.counters
    assert (counters.get("tables_adopted"), counters.get("tables_refused")) == (1, 5)


def test_pool_hotness_is_stored(start: Callable[..., Engine]) -> None:
    engine = start(**host_tier_arguments(64))
    assert engine.core.plumage("promote", b'{"uses": {"12": 3, "18446744073709551615": 1.5}}') == (204, b"")
    hotness = engine.scheduler.routes.hotness
    assert (hotness.prior(12), hotness.prior((1 << 64) - 1), hotness.prior(7)) == (3.0, 1.5, None)
    assert engine.core.plumage("promote", b'{"uses": [1]}')[0] == 400
    assert len(hotness) == 2


def test_engine_without_host_tier_refuses_pool_hotness(start: Callable[..., Engine]) -> None:
    status, body = start().core.plumage("promote", b'{"uses": {"12": 3}}')
    assert status == 404
    assert b"no host tier" in body
