"""Reading a prompt, looking it up, choosing a replica, and the accounts of each decision."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from plumage.directory.mirror.mirror import Mirror
from plumage.hashing.chunks import chain, seed
from plumage.queueing.start_window import REQUEST
from plumage.routing import make_policy
from plumage_router.fleet.replicas import Load
from plumage_router.http.errors import RequestError
from plumage_router.http.paths import CHAT_PATH, COMPLETION_PATH
from plumage_router.request.prompt import Prompt, PromptReader
from plumage_router.request.usage import Usage
from plumage_router.routing.decider import Decider
from plumage_router.routing.decision_log import Audit


def _text(message: Any) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


class _Plain:
    """Renders without a template: the text of the messages."""

    def render_chat(self, body: Any) -> bytes:
        return "".join(map(_text, body["messages"])).encode()

    def render_completion(self, prompt: Any, add_special_tokens: bool = True) -> bytes:
        return prompt.encode() if isinstance(prompt, str) else bytes(prompt)


def _reader(**more: Any) -> PromptReader:
    return PromptReader(_Plain(), "base", aliases=("alias",), adapters=("lora",), **more)


def _chat(text: str, **more: Any) -> bytes:
    return json.dumps({"model": "base", "messages": [{"role": "user", "content": text}], **more}).encode()


class _Recording:
    """Another policy, with its own `choose`."""

    name = "Recording"

    def __init__(self, choose: Any, policy: Any) -> None:
        self.choose, self.routed = choose, policy.routed


def _decider(policy: str = "PrefixAware", replicas: int = 3) -> tuple[Decider, list[Load]]:
    loads = [Load(slot, name=f"r{slot}") for slot in range(replicas)]
    return Decider(Mirror(10_000), make_policy(policy, rng=random.Random(1)), loads.__getitem__), loads


def _prompt(text: str = "x" * 2600) -> Prompt:
    return _reader().read(CHAT_PATH, _chat(text))


def test_chain_equals_that_of_the_directory() -> None:
    text = "y" * 1000
    assert _reader().read(CHAT_PATH, _chat(text)).chunks == chain(text.encode(), seed("base"))
    assert _reader().read(CHAT_PATH, _chat(text, model="alias")).chunks == chain(text.encode(), seed("base"))
    assert _reader().read(CHAT_PATH, _chat(text, model="lora")).chunks == chain(text.encode(), seed("base", "lora"))
    salted = _reader().read(CHAT_PATH, _chat(text), salt="s", tenant=True)
    assert salted.chunks == chain(text.encode(), seed("base", "", "s"))
    assert json.loads(salted.payload)["cache_salt"] == "s"
    assert _reader().read(CHAT_PATH, _chat(text, cache_salt="s")).chunks == salted.chunks


@pytest.mark.parametrize(
    ("kept", "more", "cut"),
    [
        (650, {}, True),
        (2600, {}, True),
        (2601, {}, False),
        (-1, {"max_tokens": 399}, False),
        (-1, {"max_tokens": 400}, True),
        (-1, {"max_completion_tokens": 400}, True),
        (0, {}, True),
    ],
)
def test_truncated_prompt_has_no_chain(kept: int, more: dict[str, int], cut: bool) -> None:
    """It keeps the end of a prompt, and no token is shorter than a byte."""
    text = "y" * 2600
    prompt = _reader(context=3000).read(CHAT_PATH, _chat(text, truncate_prompt_tokens=kept, **more))
    assert prompt.chunks == ([] if cut else chain(text.encode(), seed("base")))
    assert not prompt.plain
    assert len(prompt.text) == (min(2600, 4 * max(1, kept if kept >= 0 else 3000 - 400)) if cut else 2600)


def test_token_ids_are_counted_before_truncation() -> None:
    ids = [5] * 600
    for kept, cut in ((599, True), (600, False)):
        for prompt in (ids, [ids, ids]):
            body = {"model": "base", "prompt": prompt, "truncate_prompt_tokens": kept}
            assert (_reader().read(COMPLETION_PATH, json.dumps(body).encode()).chunks == []) is cut


@pytest.mark.parametrize(
    "body", [{"prompt": "x" * 799}, {"prompt": [5] * 101}, {"messages": [{"role": "user", "content": "x" * 799}]}]
)
def test_truncated_prompt_may_exceed_the_context(body: dict[str, Any]) -> None:
    reader = _reader(context=100, longest_token=4)
    path = CHAT_PATH if "messages" in body else COMPLETION_PATH
    with pytest.raises(RequestError, match="longer than this pool's context of 100 tokens"):
        reader.read(path, json.dumps({"model": "base", **body}).encode())
    cut = json.dumps({"model": "base", **body, "truncate_prompt_tokens": 50}).encode()
    assert reader.read(path, cut).chunks == []


@pytest.mark.parametrize("kept", [50, -1])
@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x" * 801},
        {"prompt": ["x", "x" * 801]},
        {"messages": [{"role": "user", "content": "x" * 801}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 401}] * 2}]},
    ],
)
def test_far_too_long_truncated_prompt_is_refused(body: dict[str, Any], kept: int) -> None:
    """The engine would tokenize all of it, to keep the end."""
    path = CHAT_PATH if "messages" in body else COMPLETION_PATH
    cut = json.dumps({"model": "base", **body, "truncate_prompt_tokens": kept}).encode()
    with pytest.raises(RequestError) as refused:
        _reader(context=100, longest_token=400).read(path, cut)
    assert refused.value.code == "context_length_exceeded"


def test_very_long_prompt_is_routed_without_chain() -> None:
    reader = _reader(context=10**7, longest_token=100)
    long = "word " * 900_000
    for path, body in (
        (COMPLETION_PATH, {"prompt": long}),
        (CHAT_PATH, {"messages": [{"role": "user", "content": long}]}),
    ):
        raw = json.dumps({"model": "base", **body}).encode()
        prompt = reader.read(path, raw)
        assert (prompt.text, prompt.chunks) == (b"", [])
        assert json.loads(prompt.payload)["model"] == "base"
    parts = [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": "data:," + "x" * 5_000_000}]
    raw = json.dumps({"model": "base", "messages": [{"role": "user", "content": parts}]}).encode()
    assert reader.read(CHAT_PATH, raw).text, "an image is no text"


def test_payload_changes_only_for_alias() -> None:
    assert _reader().read(CHAT_PATH, _chat("x")).payload == _chat("x")
    assert json.loads(_reader().read(CHAT_PATH, _chat("x", model="alias")).payload)["model"] == "base"


def test_first_of_several_prompts_decides() -> None:
    raw = json.dumps({"model": "base", "prompt": ["a" * 600, "b" * 600]}).encode()
    assert _reader().read(COMPLETION_PATH, raw).text == b"a" * 600


def test_prompt_over_context_in_every_tokenization_is_refused() -> None:
    reader = _reader(context=100, longest_token=10)
    assert reader.read(CHAT_PATH, _chat("x" * 1000)).text
    with pytest.raises(RequestError) as refused:
        reader.read(CHAT_PATH, _chat("x" * 1001))
    assert refused.value.code == "context_length_exceeded"


def test_burst_on_new_prefix_follows_first_request() -> None:
    decider, loads = _decider()
    first = decider.decide(_prompt(), loads, 0.0)
    others = [decider.decide(_prompt(), loads, 0.01) for _ in range(5)]
    assert {decision.ticket.slot for decision in others} == {first.ticket.slot}
    assert others[0].depth == len(_prompt().chunks) == 10


def test_policy_gets_the_longest_cached_prefix() -> None:
    """By it Lbgr counts which share of the requests wants the same prefix."""
    decider, loads = _decider("Lbgr")
    shared = "x" * 2048
    seen = []
    choose = decider.policy.choose
    decider.policy = _Recording(lambda query, replicas: seen.append(query) or choose(query, replicas), decider.policy)
    for tail in ("first" * 100, "second" * 100):
        decider.decide(_prompt(shared + tail), loads, 0.0)
    first, second = seen
    assert first.cached_chunks == 0
    assert 0 < second.cached_chunks < len(second.chunks)
    common = [one for one, other in zip(first.chunks, second.chunks, strict=False) if one == other]
    assert list(second.chunks[: second.cached_chunks]) == common


def test_failure_before_prefill_removes_pending_owner() -> None:
    decider, loads = _decider()
    first = decider.decide(_prompt(), loads, 0.0)
    decider.failed(first, 0.1)
    assert decider.look_up(_prompt())[0] == {}
    second = decider.decide(_prompt(), loads, 0.2)
    decider.failed(second, 0.3, computed=True)
    assert second.ticket.slot in decider.look_up(_prompt())[0]


def test_pending_owner_expires() -> None:
    for renewed in (False, True):
        decider, loads = _decider()
        decider.decide(_prompt(), loads, 0.0)
        if renewed:
            decider.decide(_prompt(), loads, 8.0)
        list(decider.mirror.expire(12.0))
        assert bool(decider.look_up(_prompt())[0]) is renewed


def test_pending_owner_outlives_predicted_queue() -> None:
    decider, loads = _decider("Lbgr", replicas=1)
    # Before it learned, LBGR predicts a second for a thousand tokens.
    first = decider.decide(_prompt("a" * 400_000), loads, 0.0)
    assert first.ticket.predicted_ttft is not None
    assert 50.0 < first.ticket.predicted_ttft < 200.0
    decider.decide(_prompt(), loads, 0.1)
    list(decider.mirror.expire(first.ticket.predicted_ttft))
    assert decider.look_up(_prompt())[0]
    list(decider.mirror.expire(first.ticket.predicted_ttft * 2.0 + 11.0))
    assert not decider.look_up(_prompt())[0]


def test_prefill_without_stream_ends_at_prediction() -> None:
    """The end of an answer is no sample of how long prompts wait."""
    decider, loads = _decider("Lbgr", replicas=1)
    whole = _reader().read(CHAT_PATH, _chat("a" * 8000))
    stream = _reader().read(CHAT_PATH, _chat("b" * 8000, stream=True))
    first = decider.decide(whole, loads, 0.0)
    assert first.ticket.predicted_ttft == pytest.approx(2.0)
    assert loads[0].prefill_tokens == 2000.0
    second = decider.decide(stream, loads, 1.9)
    assert loads[0].prefill_tokens == 4000.0
    third = decider.decide(stream, loads, 2.1)
    assert loads[0].prefill_tokens == 2000.0 + third.prefill.tokens
    assert decider.work(loads[0]) == pytest.approx(loads[0].prefill_tokens * 0.05 * 2.0 / 2000.0)
    pace = decider.seconds_per_token
    decider.finished(first, 60.0, Usage(2000, 0))
    assert decider.seconds_per_token == pace
    decider.first_token(second, 60.0)
    assert decider.seconds_per_token > pace
    decider.failed(second, 60.0)
    decider.failed(third, 60.0)
    assert loads[0].prefill_tokens == 0.0


def test_ended_prefills_are_not_watched() -> None:
    decider, loads = _decider("Lbgr")
    under_way = decider.decide(_prompt("o" * 2600), loads, 0.0)
    prompt = _prompt()
    for _ in range(5_000):  # failures, from which no shorter time is learned
        decider.failed(decider.decide(prompt, loads, 0.0), 0.0)
    assert len(decider._watched) <= 1024
    assert under_way.prefill in [prefill for _, _, prefill in decider._watched]


def test_tokens_are_known_or_estimated() -> None:
    decider, _ = _decider()
    prompt = _prompt()
    decider.mirror.apply(1, [(chunk, 1, 100 * depth) for depth, chunk in enumerate(prompt.chunks[:4], 1)])
    hits, depth, tokens = decider.look_up(prompt)
    assert (hits, depth) == ({1: 400}, 4)
    assert tokens == 400 + (2600 - 4 * 256) / 4.0


def test_engine_count_is_used_before_events() -> None:
    decider, loads = _decider(replicas=1)
    first = _prompt("odd " * 640 + "y" * 100)
    decision = decider.decide(first, loads, 0.0)
    decider.finished(decision, 1.0, Usage(prompt_tokens=1330, cached_tokens=0))
    rest = 100 / decider.rate.bytes_per_token
    assert decider.mirror.match(first.chunks)[0] == (10, round(1330 - rest))
    other = decider.decide(_prompt("z" * 2600), loads, 2.0).prompt
    a_chunk = round(256 / decider.rate.bytes_per_token)
    assert decider.mirror.match(other.chunks)[0] == (10, 10 * a_chunk)


@pytest.mark.parametrize("policy", ["Lbgr", "RoundRobin", "LeastLoad", "PrefixAware"])
def test_work_in_flight_returns_to_zero(policy: str) -> None:
    decider, loads = _decider(policy)
    rng = random.Random(3)
    under_way = []
    for step in range(300):
        prompt = _reader().read(CHAT_PATH, _chat(rng.choice("abc") * 2600, stream=rng.random() < 0.5))
        under_way.append(decider.decide(prompt, loads, step / 10))
        if len(under_way) > 10:
            decision = under_way.pop(rng.randrange(10))
            if rng.random() < 0.8:
                decider.first_token(decision, step / 10 + 0.05)
            if rng.random() < 0.8:
                decider.finished(decision, step / 10 + 0.09, Usage(650, 100))
            else:
                decider.failed(decision, step / 10 + 0.09)
    assert sum(load.routed for load in loads) == 10
    visible = [one.prefill for one in under_way if one.prefill.visible and one.prefill.counted]
    assert sum(load.starting for load in loads) == len(visible) > 0
    assert sum(load.starting_work for load in loads) == pytest.approx(sum(one.work for one in visible))
    for decision in under_way:
        decider.failed(decision, 31.0)
    for load in loads:
        assert load.routed == 0
        assert load.starting == 0
        assert load.starting_work == pytest.approx(0.0, abs=1e-6)
        assert load.prefill_tokens == pytest.approx(0.0, abs=1e-6)
        assert load.decode_blocks == pytest.approx(0.0, abs=1e-6)


def test_work_of_a_prompt_is_at_most_the_context() -> None:
    """Spaces have many bytes a token: the estimate from words is far too high."""
    decider, loads = _decider(replicas=1)
    decider.most_tokens = 500.0
    decision = decider.decide(_reader().read(CHAT_PATH, _chat(" " * 100_000, stream=True)), loads, 0.0)
    assert decision.prefill.work == loads[0].starting_work == 500.0 + REQUEST


def test_long_prompts_train_bytes_per_token() -> None:
    decider, loads = _decider()
    for _ in range(300):
        decider.finished(decider.decide(_prompt(), loads, 0.0), 1.0, Usage(1300, 0))
    assert decider.rate.bytes_per_token == pytest.approx(2.0, rel=0.01)


def test_other_script_does_not_change_token_rate() -> None:
    decider, loads = _decider()
    for number in range(100):
        tokens = 1950 if number % 4 == 3 else 400
        decider.finished(decider.decide(_prompt(), loads, 0.0), 1.0, Usage(tokens, 0))
        assert decider.rate.bytes_per_token == 2600 / 400


_TEXT = "x" * 2600
_IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("body", "plain"),
    [
        ({"prompt": _TEXT}, True),
        ({"prompt": _TEXT, "truncate_prompt_tokens": 10}, False),
        ({"prompt": [_TEXT] * 50}, False),
        ({"prompt": [5] * 2600}, False),
        ({"prompt": [[5] * 2600] * 2}, False),
        ({"messages": [{"role": "user", "content": _TEXT}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": _TEXT}]}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": _TEXT}, _IMAGE]}]}, False),
        ({"messages": [{"role": "user", "content": [_IMAGE]}, {"role": "user", "content": _TEXT}]}, False),
    ],
)
def test_only_plain_prompts_train_policy(body: dict[str, Any], plain: bool) -> None:
    """An engine counts the tokens of all prompts and of media together. The router knows the first prompt's text."""
    path = CHAT_PATH if "messages" in body else COMPLETION_PATH
    prompt = _reader().read(path, json.dumps({"model": "base", **body}).encode())
    assert prompt.plain is plain
    decider, loads = _decider()
    graded: list[float | None] = []
    decider.policy.finished = lambda ticket, now, cached: graded.append(cached)  # type: ignore[method-assign]
    for _ in range(100):
        decider.finished(decider.decide(prompt, loads, 0.0), 1.0, Usage(50 * 1300, 640))
    assert (decider.rate.bytes_per_token == 4.0) is not plain
    assert set(graded) == {640 if plain else None}


def test_only_new_prefixes_are_shared() -> None:
    decider, loads = _decider()
    shared: list[int] = []
    decider.share = lambda chunks, slot, ttl: shared.append(slot)
    slots = [decider.decide(_prompt(), loads, 0.0).ticket.slot for _ in range(3)]
    assert shared == slots[:1]


def test_audit_is_bounded_and_finds_latest_record() -> None:
    decider, loads = _decider(replicas=40)
    audit = Audit(8)
    for number in range(20):
        decision = decider.decide(_prompt(), loads, float(number))
        audit.add(decision, request_id=f"r{number // 2}", at=0.0, tenant="", policy="p", degraded=False)
    assert audit.find("r5") is None
    assert audit.find("r6") is not None
    latest = list(audit.latest(100))
    assert [record.request_id for record in latest] == ["r9", "r9", "r8", "r8", "r7", "r7", "r6", "r6"]
    assert audit.find("r9") is latest[0]
    assert len(latest[0].candidates) == 16, "the best of many candidates are kept"
    assert latest[0].considered == 40
    assert latest[0].available == 40


def test_audit_shows_number_of_considered_replicas() -> None:
    decider, loads = _decider("Lbgr", replicas=200)
    for now in (0.0, 1.0):
        decision = decider.decide(_prompt(), loads, now)
    record = Audit(8).add(decision, request_id="r", at=0.0, tenant="", policy="Lbgr", degraded=False)
    assert (record.considered, record.available) == (len(decision.considered), 200)
    assert 2 <= record.considered <= 64
    assert len(record.candidates) == 16
    assert record.replica in {name for name, _, _ in record.candidates}
    assert f"the most of {record.considered} of 200" in record.why()
    assert record.document()["available"] == 200
