"""The OpenAI API of a simulated engine, as the official client and as raw sockets see it."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support import forks
from support.scrapes import families
from tests.integration.simulator.conftest import API_KEY, Engine, running

from plumage_engine.simulator.engine.device import GPU

WORDS = "the parser reads a file and returns each line of it as a value "
SLOW = {"preset": "gpu", "timeScale": 0.5}  # about 14 ms a token: 250 take long enough to be caught at it


@pytest.fixture
def client(engine: Engine) -> Any:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key=API_KEY, max_retries=0) as made:
        yield made


def test_streamed_text_equals_whole_answer(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": WORDS * 9}]
    whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=40)
    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=40, stream=True, stream_options=options
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text.isascii()
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_cached_tokens_grow_with_seen_prefixes(client: openai.OpenAI) -> None:
    prompt = "cached " + WORDS * 12
    seen = []
    for _ in range(2):
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        seen.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert answer.usage is not None
    assert seen == [0, (answer.usage.prompt_tokens - 1) // 16 * 16]


def test_next_turn_finds_answer_in_cache(engine: Engine) -> None:
    question = "conversation " + WORDS * 10
    first = engine.chat(question, max_tokens=64, ignore_eos=True)
    answer = first["choices"][0]["message"]["content"]
    second = engine.chat(question, answer, "and then?", max_tokens=4)
    covered = first["usage"]["prompt_tokens"] + 63  # the last token of an answer has no KV
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == covered // 16 * 16


def test_prompt_may_be_token_ids(engine: Engine) -> None:
    body = {"model": "tiny", "prompt": list(range(300, 364)), "max_tokens": 2, "ignore_eos": True}
    for cached in (0, 48):
        answer = engine.client.post("/v1/completions", json=body).raise_for_status().json()
        assert answer["usage"]["prompt_tokens"] == 64
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def test_salts_and_models_do_not_share_blocks(engine: Engine) -> None:
    prompt = "salted " + WORDS * 12
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}

    def cached(**more: Any) -> int:
        answer = engine.client.post("/v1/completions", json={**body, **more}).raise_for_status().json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached() == 0
    assert cached(cache_salt="one") == 0
    assert cached(cache_salt="two") == 0
    assert cached(cache_salt="one") == cached() > 0


def test_answer_ends_at_requested_tokens(engine: Engine) -> None:
    def ask(**more: Any) -> tuple[str, str, int]:
        answer = engine.chat("how does it end?", **more)
        choice = answer["choices"][0]
        return choice["message"]["content"], choice["finish_reason"], answer["usage"]["completion_tokens"]

    natural, reason, length = ask()
    assert reason == "stop"
    longer, reason, tokens = ask(max_tokens=length + 5, ignore_eos=True)
    assert (reason, tokens) == ("length", length + 5)
    assert longer.startswith(natural)
    words = longer.split(" ")
    stop = f" {words[4]}"
    cut, reason, tokens = ask(max_tokens=length + 5, ignore_eos=True, stop=[stop])
    assert cut == longer[: longer.index(stop)]
    assert reason == "stop"
    assert ask(max_tokens=8, ignore_eos=True, seed=7)[0] != ask(max_tokens=8, ignore_eos=True)[0]
    assert ask(max_tokens=8, ignore_eos=True, seed=7) == ask(max_tokens=8, ignore_eos=True, seed=7)


PATHS = pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])


def _usages(engine: Engine, path: str, options: dict[str, bool] | None) -> list[tuple[int, dict[str, Any] | None]]:
    """Of each event of a stream of three tokens: its choices and its usage."""
    asked = {"prompt": "usage"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "usage"}]}
    body = {"model": "tiny", "max_tokens": 3, "stream": True, "ignore_eos": True, "stream_options": options, **asked}
    with engine.client.stream("POST", path, json=body) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [(len(event["choices"]), event.get("usage")) for event in map(json.loads, lines[:-1])]


@PATHS
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"continuous_usage_stats": True}])
def test_stream_has_usage_only_on_request(engine: Engine, path: str, options: dict[str, bool]) -> None:
    assert {usage is None for _, usage in _usages(engine, path, options)} == {True}


@PATHS
def test_include_usage_adds_last_event(engine: Engine, path: str) -> None:
    *tokens, (choices, last) = _usages(engine, path, {"include_usage": True, "continuous_usage_stats": False})
    assert [usage for _, usage in tokens] == [None] * len(tokens)
    assert choices == 0
    assert last is not None
    assert last["completion_tokens"] == 3
    assert "cached_tokens" in last["prompt_tokens_details"]


@PATHS
@pytest.mark.parametrize("forced", [False, True])
def test_continuous_and_forced_usage_is_in_every_event(engine: Engine, path: str, forced: bool) -> None:
    options = None if forced else {"include_usage": True, "continuous_usage_stats": True}
    with running(enableForceIncludeUsage=True) if forced else nullcontext(engine) as asked:
        *tokens, (choices, last) = _usages(asked, path, options)
    counts = [usage["completion_tokens"] for _, usage in tokens if usage is not None]
    assert len(counts) == len(tokens)
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0 if "chat" in path else counts[0], 3)
    assert (choices, last and last["completion_tokens"]) == (0, 3)


@PATHS
def test_stream_options_without_a_stream_are_refused(engine: Engine, path: str) -> None:
    asked = {"prompt": "usage"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "usage"}]}
    answer = engine.client.post(path, json={"model": "tiny", "stream_options": {"include_usage": True}, **asked})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream_options")


def test_headers_precede_first_token() -> None:
    body = json.dumps({"model": "tiny", "prompt": WORDS * 30, "max_tokens": 2, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\ncontent-length: {len(body)}"
    with running(device={"preset": "gpu", "timeScale": 200}) as slow:
        with socket.create_connection(("127.0.0.1", slow.port)) as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + body)
            got = b""
            while b"\r\n\r\n" not in got:
                got += connection.recv(4096)
            assert got.startswith(b"HTTP/1.1 200")
            assert got.endswith(b"\r\n\r\n")
            slow.until(lambda stats: stats["running"] == 1)
        slow.until(lambda stats: stats["running"] == 0)


def test_disconnected_client_ends_request() -> None:
    """An answer that takes most of a minute, so that only its end by the client explains that it ends."""
    body = {"model": "tiny", "prompt": "gone " + WORDS, "max_tokens": 3500, "stream": True, "ignore_eos": True}
    with running(device=SLOW) as engine:
        with engine.client.stream("POST", "/v1/completions", json=body) as response:
            chunks = response.iter_bytes()  # kept: a generator that is dropped closes the connection
            next(chunks)
            assert engine.stats()["running"] == 1
        assert engine.until(lambda stats: stats["running"] == 0)["kvUsage"] == 0
        assert engine.stats()["generatedTokens"] < 3500
        whole = {**body, "stream": False}
        with pytest.raises(httpx.ReadTimeout):
            engine.client.post("/v1/completions", json=whole, timeout=0.2)
        engine.until(lambda stats: stats["running"] == 0)


PICTURE = {"type": "image_url", "image_url": {"url": "x"}}
BAD: list[tuple[str, Any, int, str | None]] = [
    ("/v1/chat/completions", b"{", 400, None),
    ("/v1/chat/completions", b"[]", 400, None),
    ("/v1/chat/completions", {"model": "tiny"}, 400, "messages"),
    ("/v1/chat/completions", {"model": "tiny", "messages": []}, 400, "messages"),
    ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": 3}]}, 400, "messages"),
    (
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        },
        400,
        "messages",
    ),
    ("/v1/completions", {"model": "other", "prompt": "a"}, 404, "model"),
    ("/v1/completions", {"model": "tiny", "prompt": ["a", "b"]}, 400, "prompt"),
    ("/v1/completions", {"model": "tiny", "prompt": []}, 400, "prompt"),
    ("/v1/completions", {"model": "tiny", "prompt": [1, 99_999]}, 400, "prompt"),
    ("/v1/completions", {"model": "tiny", "prompt": [1, -1]}, 400, "prompt"),
    ("/v1/completions", {"model": "tiny", "prompt": "a", "n": 2}, 400, "n"),
    ("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    ("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": True}, 400, "max_tokens"),
    ("/v1/completions", {"model": "tiny", "prompt": "a", "stream": "yes"}, 400, "stream"),
    ("/v1/completions", {"model": "tiny", "prompt": "a", "stop": [""]}, 400, "stop"),
    ("/v1/completions", {"model": "tiny", "prompt": "a", "logprobs": 3}, 400, "logprobs"),
    ("/v1/completions", {"model": "tiny", "prompt": "a " * 5000}, 400, "prompt"),
    ("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 4096}, 400, "prompt"),
    (
        "/v1/completions",
        {"model": "tiny", "prompt": "a", "response_format": {"type": "json_object"}},
        400,
        "response_format",
    ),
    ("/v1/nothing", {}, 404, None),
    ("/v1/completions/", {"model": "tiny", "prompt": "a"}, 404, None),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), BAD)
def test_bad_requests_get_error_object(engine: Engine, path: str, body: Any, status: int, param: str | None) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = engine.client.post(path, content=data)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["code"] == status
    assert error["param"] == param
    assert error["message"]
    assert engine.stats()["running"] == engine.stats()["waiting"] == 0


def test_body_over_the_limit_is_refused() -> None:
    with running(maxBodyBytes=2048) as small:
        response = small.client.post("/v1/completions", json={"model": "tiny", "prompt": "a" * 4096})
        assert response.status_code == 413


def test_keys_guard_only_their_routes(engine: Engine) -> None:
    with httpx.Client(base_url=engine.url) as anonymous:
        assert anonymous.get("/health").status_code == 200
        assert anonymous.get("/metrics").status_code == 200
        assert anonymous.get("/v1/models").status_code == 401
        assert anonymous.get("/v1/plumage/snapshot").status_code == 401
    assert engine.client.get("/v1/plumage/snapshot").status_code == 401
    assert engine.admin.get("/v1/models").status_code == 401
    assert engine.client.get("/v1/models").json()["data"][0]["max_model_len"] == 4096


def test_metrics_have_vllm_names_and_match_requests(engine: Engine) -> None:
    engine.chat("metrics " + WORDS * 5, max_tokens=5, ignore_eos=True)
    found = families(engine.client.get("/metrics").text)
    stats = engine.stats()

    def value(name: str) -> float:
        return found[name].samples[0].value

    assert value("vllm:num_requests_running") == 0
    assert value("vllm:kv_cache_usage_perc") == 0
    assert value("vllm:prefix_cache_queries_total") == stats["queryTokens"]
    assert value("vllm:prefix_cache_hits_total") == stats["hitTokens"]
    assert value("vllm:generation_tokens_total") == stats["generatedTokens"]
    for name in ("time_to_first_token", "inter_token_latency", "request_queue_time", "e2e_request_latency"):
        counts = {sample.name: sample.value for sample in found[f"vllm:{name}_seconds"].samples}
        assert counts[f"vllm:{name}_seconds_count"] > 0
    assert found["vllm:cache_config_info"].samples[0].labels["block_size"] == "16"


def test_settings_of_a_newer_operator_are_counted(engine: Engine) -> None:
    name = "plumage_engine_config_ignored_fields"
    lines = [line for line in engine.client.get("/metrics").text.splitlines() if line.startswith(name)]
    assert [line.rpartition(" ")[2] for line in lines] == ["0.0"]
    with running(writtenBy="operator", novelty=1, feather={"policy": "Bandit", "novelty": 1}) as older:
        older_lines = [line for line in older.client.get("/metrics").text.splitlines() if line.startswith(name)]
        assert [line.rpartition(" ")[2] for line in older_lines] == ["2.0"]
        body = {"policy": "QLearning", "novelty": 1}
        assert older.admin.post("/v1/plumage/feather", json=body).status_code == 400
        assert older.admin.post("/v1/plumage/feather", json={**body, "writtenBy": "operator"}).status_code == 204


def test_only_host_tier_has_its_metrics(engine: Engine) -> None:
    assert "kv_offload" not in engine.client.get("/metrics").text
    tier = {"minFrequency": 1, "promotion": "Off"}
    with running(cacheBlocks=40, hostBlocks=200, hostTier=tier, maxModelLen=640) as small:
        for number in (1, 2, 3, 4, 1):
            small.client.post(
                "/v1/completions", json={"model": "tiny", "prompt": f"{number} " + WORDS * 20, "max_tokens": 1}
            ).raise_for_status()
        found = families(small.client.get("/metrics").text)
        stats = small.stats()
    for way in ("load", "store"):
        moved = found[f"vllm:kv_offload_{way}_bytes_total"].samples[0].value
        sizes = {
            sample.name.rpartition("_")[2]: sample.value for sample in found[f"vllm:kv_offload_{way}_size"].samples
        }
        assert sizes["sum"] == moved > 0
        assert sizes["count"] >= 1
        assert found[f"vllm:kv_offload_{way}_time_total"].samples[0].value > 0
    loaded = found["vllm:kv_offload_load_bytes_total"].samples[0].value
    assert stats["hostHitTokens"] > 0
    assert loaded == stats["hostHitTokens"] * GPU.kv_bytes_per_token
    waiting = {sample.labels["reason"]: sample.value for sample in found["vllm:num_requests_waiting_by_reason"].samples}
    assert waiting == {"capacity": 0, "deferred": 0}


def test_cache_reset_needs_dev_mode(engine: Engine) -> None:
    assert engine.client.post("/reset_prefix_cache").status_code == 404
    with running(devMode=True, device=SLOW) as dev, ThreadPoolExecutor() as threads:
        dev.chat("reset " + WORDS * 5, max_tokens=1)
        assert dev.stats()["cachedBlocks"] > 0
        busy = threads.submit(dev.chat, "busy " + WORDS * 5, max_tokens=250, ignore_eos=True)
        dev.until(lambda stats: stats["running"] == 1)
        assert dev.client.post("/reset_prefix_cache").status_code == 200
        assert dev.stats()["cachedBlocks"] > 0, "a request holds blocks"
        assert dev.client.post("/reset_prefix_cache?reset_running_requests=true").status_code == 200
        assert busy.result()["usage"]["completion_tokens"] == 250
        assert dev.stats()["preemptions"] == 1
        before = dev.stats()["nextSequence"]
        assert dev.client.post("/reset_prefix_cache").status_code == 200
        assert (dev.stats()["cachedBlocks"], dev.stats()["nextSequence"]) == (0, before + 1)


def test_drain_finishes_requests_and_refuses_new_ones() -> None:
    body = {"model": "tiny", "prompt": "drain", "max_tokens": 250, "ignore_eos": True}
    with running(device=SLOW) as draining, ThreadPoolExecutor() as threads:
        busy = threads.submit(draining.client.post, "/v1/completions", json=body)
        draining.until(lambda stats: stats["running"] == 1)
        first = draining.admin.post("/v1/plumage/drain", json={"timeoutSeconds": 0}).json()
        assert first == {"drained": False, "inFlight": 1}
        refused = draining.client.post("/v1/completions", json=body)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert draining.admin.post("/v1/plumage/drain", json={"timeoutSeconds": 30}).json()["drained"] is True
        assert busy.result().status_code == 200
        assert draining.admin.post("/v1/plumage/drain", content=b"[]").status_code == 400


def test_sigterm_lets_requests_finish() -> None:
    body = {"model": "tiny", "prompt": "term", "max_tokens": 250, "ignore_eos": True}
    with running(device=SLOW, shutdownSeconds=60) as ending, ThreadPoolExecutor() as threads:
        busy = threads.submit(ending.client.post, "/v1/completions", json=body)
        ending.until(lambda stats: stats["running"] == 1)
        ending.process.terminate()
        assert busy.result().json()["usage"]["completion_tokens"] == 250
        assert ending.process.wait(30) == 0


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ("{", "no JSON"),
        ('{"model": "a", "modelFolder": "/nowhere", "port": 1, "colour": 1}', "colour"),
        ('{"model": "a", "modelFolder": "/nowhere", "port": 1}', "'/nowhere': no such folder"),
        ('{"model": "a", "modelFolder": "/nowhere", "port": 1, "host": "0.0.0.0"}', "adminTokenFile"),
        ('{"model": "a", "modelFolder": "/nowhere", "port": 1, "replayEndpoint": "ipc:///x"}', "eventsEndpoint"),
    ],
)
def test_invalid_configuration_names_remedy(tmp_path: Path, config: str, names: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(config)
    done = forks.run("plumage_engine.simulator", f"--config={path}")
    assert done.returncode == 2
    assert names in done.stderr
    assert "Traceback" not in done.stderr


def test_each_metric_family_has_one_help_and_type(engine: Engine) -> None:
    lines = engine.client.get("/metrics").text.splitlines()
    for kind in ("HELP", "TYPE"):
        named = [line.split()[2] for line in lines if line.startswith(f"# {kind} ")]
        assert sorted(set(named)) == sorted(named)
    waiting = [line for line in lines if line.startswith("vllm:num_requests_waiting_by_reason{")]
    assert ['reason="capacity"' in line or 'reason="deferred"' in line for line in waiting] == [True, True]


def test_tokens_are_those_that_a_completion_counts(engine: Engine, client: openai.OpenAI) -> None:
    headers = {"authorization": f"Bearer {API_KEY}"}
    messages: Any = [{"role": "user", "content": WORDS}]
    with httpx.Client(base_url=engine.url, headers=headers) as http:
        counted = http.post("/tokenize", json={"model": "tiny", "messages": messages}).json()
        answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=1)
        assert answer.usage is not None
        assert counted["count"] == len(counted["tokens"]) == answer.usage.prompt_tokens
        assert counted["max_model_len"] > 0
        assert counted["token_strs"] is None
        raw = http.post("/tokenize", json={"prompt": WORDS, "return_token_strs": True}).json()
        assert len(raw["token_strs"]) == raw["count"]
        whole = http.post("/detokenize", json={"tokens": raw["tokens"]}).json()
        assert WORDS in whole["prompt"]


def test_tokenizer_endpoints_name_what_is_wrong(engine: Engine) -> None:
    headers = {"authorization": f"Bearer {API_KEY}"}
    with httpx.Client(base_url=engine.url, headers=headers) as http:
        for path, body, param in (
            ("/tokenize", {"prompt": [1, 2]}, "prompt"), ("/tokenize", {"messages": []}, "messages"),
            ("/detokenize", {"tokens": [10**9]}, "tokens"), ("/detokenize", {"tokens": "a"}, "tokens"),
            ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": [1], "model": ["a"]}, "model"),
        ):  # fmt: skip
            answer = http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (path, body)
        assert http.post("/tokenize", json={"model": "other", "prompt": "a"}).status_code == 404
    assert httpx.post(f"{engine.url}/tokenize", json={"prompt": "a"}).status_code == 401
