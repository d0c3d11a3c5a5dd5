"""The time from an engine's event to a match in a router, through a publisher like vLLM's, real agents, a real server
and a router's sync. Each is a process of its own.

A chunk's time begins when the event that completes it leaves the publisher, and ends when the router's mirror has it.
Blocks are stored at the given rate in steps of 20 ms for each engine. An engine with a full cache drops as many. CPU
time is counted from then until the last event: each stored block replaces another one. The prompts of all seeds follow
each other in one run, so that start and filling happen once.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import IO

import msgspec
import psutil
import redis
import zmq

from plumage.directory.schema import Keys
from plumage.directory.server.local_server import LocalServer
from plumage.hashing import chunks
from plumage.models import resolve
from plumage.rendering import ByteTable, ModelFolder
from plumage_bench.quantiles import quantile

__all__ = ["Lag", "SeedLag", "measure_lag"]

POOL = "bench"
MODEL = "tiny"
ENGINES = 4
STEP = 0.020
BLOCK = 16  # tokens
PROMPT = 64  # blocks
CACHE = 5000  # blocks in an engine's cache
WARM_UP = 1.0  # seconds of events before the measurement
AFTER = 1.0  # seconds for the last events to arrive
START = 60.0  # seconds for the agents to start
QUIET = 0.5  # seconds until the work of the start has ended

_HISTOGRAMS = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "request_queue_time_seconds",
    "e2e_request_latency_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
    "request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total", "request_inference_time_seconds",
)  # fmt: skip
_COUNTS = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total",
           "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total")  # fmt: skip
_LABELS = 'engine="0",model_name="tiny"'
METRICS = "".join(
    [f"vllm:{name}{{{_LABELS}}} {number}.0\n" for number, name in enumerate(_COUNTS)]
    + [f'vllm:{name}_bucket{{{_LABELS},le="{2**edge}"}} 7.0\n' for name in _HISTOGRAMS for edge in range(20)]
).encode()  # a metrics page as long as vLLM's


@dataclass(frozen=True, slots=True)
class SeedLag:
    """The results of one seed's prompts: seconds from event to match, sorted; microseconds of CPU as in `Lag`."""

    seed: int
    sorted: list[float]
    agent_micros: float

    def percentile(self, percent: float) -> float:
        return quantile(self.sorted, percent / 100)


@dataclass(frozen=True, slots=True)
class Lag:
    """rate: blocks stored a second in total. Microseconds of CPU are of whole processes, for each block event: stored
    or removed."""

    engines: int
    rate: float
    by_seed: Sequence[SeedLag]
    router_micros: float

    @property
    def sorted(self) -> list[float]:
        """The lags of all seeds."""
        return sorted(lag for one in self.by_seed for lag in one.sorted)

    def percentile(self, percent: float) -> float:
        """The median of the seeds' percentiles."""
        return median(one.percentile(percent) for one in self.by_seed)

    @property
    def agent_micros(self) -> float:
        """The median of the seeds."""
        return median(one.agent_micros for one in self.by_seed)


@dataclass(slots=True)
class _Step:
    """One message of an engine, ready to be sent, and the chunks that it completes."""

    payload: bytes
    chunks: list[int]
    events: int


def measure_lag(rate: int, seconds: float, seeds: Sequence[int], number: int = ENGINES) -> Lag:
    """`rate`: blocks stored a second by `number` engines in total. Measures `seconds` for each seed after the caches
    are full, and a little before. RuntimeError if a chunk never arrived."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="plumage-lag-")))
        server = stack.enter_context(LocalServer())
        names = [f"r{each}" for each in range(number)]
        engines = [stack.enter_context(_Engine(folder, name)) for name in names]
        agents = [stack.enter_context(_agent(folder, engine, server.url)) for engine in engines]
        router = stack.enter_context(_router(server.url, names))
        return _drive(server.url, engines, agents, router, rate, seconds, seeds)


def _drive(
    server_url: str, engines: Sequence[_Engine], agents: Sequence[psutil.Process], router: subprocess.Popen[str],
    rate: int, seconds: float, seeds: Sequence[int],
) -> Lag:  # fmt: skip
    blocks = round(rate * STEP / len(engines))
    full, length = max(int(WARM_UP / STEP), CACHE // blocks + 1), int(seconds / STEP)
    steps = full + length * len(seeds)
    turns = [max(0, number - full) // length for number in range(steps)]  # the seed of each step
    table = ByteTable.from_tokenizer_json(ModelFolder.load(resolve("builtin://tiny-chat")).tokenizer_json)
    made = [list(_steps(table, seeds, turns, blocks, n)) for n in range(len(engines))]
    _wait_for(server_url, [engine.name for engine in engines])
    sent: list[dict[int, float]] = [{} for _ in seeds]
    started, used = time.monotonic(), list[float]()
    for number in range(steps):
        if number == full + length * len(used):
            used.append(_cpu(agents))
        for phase, engine in enumerate(engines):
            due = started + STEP * (number + phase / len(engines))
            time.sleep(max(0.0, due - time.monotonic()))
            step = made[phase][number]
            now = time.monotonic()
            engine.publish(step.payload)
            if number * STEP >= WARM_UP:
                sent[turns[number]].update(dict.fromkeys(step.chunks, now))
    elapsed = time.monotonic() - started
    used.append(_cpu(agents))
    time.sleep(AFTER)
    result = json.loads(router.communicate("")[0])
    usable = dict(result["usable"])
    by_seed = []
    for turn, (before, after) in enumerate(pairwise(used)):
        micros = (after - before) / _events(made, full + length * turn, length) * 1e6
        by_seed.append(SeedLag(seeds[turn], _lags(sent[turn], usable), micros))
    stored = steps * blocks * len(engines)
    return Lag(len(engines), stored / elapsed, by_seed, result["cpu"] / _events(made, 0, steps) * 1e6)


def _events(made: Sequence[Sequence[_Step]], first: int, count: int) -> int:
    return sum(step.events for steps in made for step in steps[first : first + count])


def _wait_for(url: str, names: Sequence[str]) -> None:
    """Waits until all agents have written their first heartbeat: the start of a process is not part of an event's
    cost."""
    deadline = time.monotonic() + START
    with redis.Redis.from_url(url) as client:
        while not all(client.exists(Keys(POOL, name).beat) for name in names):
            if time.monotonic() > deadline:
                raise RuntimeError("an agent did not start; its message is above")
            time.sleep(0.05)
    time.sleep(QUIET)


def _lags(sent: dict[int, float], usable: dict[int, float]) -> list[float]:
    missing = sum(chunk not in usable for chunk in sent)
    if missing:
        raise RuntimeError(f"{missing} of {len(sent)} chunks never became usable in the router")
    return sorted(usable[chunk] - at for chunk, at in sent.items())


# The engine's side


class _Surface(BaseHTTPRequestHandler):
    """The part of an engine's HTTP API that an agent of a stock engine uses: its metrics, on a persistent
    connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = METRICS if self.path == "/metrics" else b""
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class _Engine:
    """The two sockets of an engine's KV events, and its metrics."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Surface)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.endpoint, self.replay_endpoint = f"ipc://{folder}/{name}.e", f"ipc://{folder}/{name}.r"
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=10_000)
        self._next = 0
        self._context = zmq.Context()
        self._live = self._context.socket(zmq.PUB)
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._replay, self._http.serve_forever)]

    def __enter__(self) -> _Engine:
        self._live.bind(self.endpoint)
        for thread in self._threads:
            thread.start()
        self.publish(msgspec.msgpack.encode([time.time(), [], 0]))
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._http.shutdown()
        self._http.server_close()
        for thread in self._threads:
            thread.join()
        self._live.close(linger=0)
        self._context.term()

    def publish(self, payload: bytes) -> None:
        self._kept.append((self._next, payload))
        self._live.send_multipart([b"kv", self._next.to_bytes(8, "big"), payload])
        self._next += 1

    def _replay(self) -> None:
        router = self._context.socket(zmq.ROUTER)
        router.bind(self.replay_endpoint)
        while not self._stopped.is_set():
            if router.poll(50):
                client, _, start = router.recv_multipart()
                for seq, payload in list(self._kept):
                    if seq >= int.from_bytes(start, "big"):
                        router.send_multipart([client, b"", seq.to_bytes(8, "big"), payload])
                router.send_multipart([client, b"", b"\xff" * 8, b""])
        router.close(linger=0)


@dataclass(slots=True)
class _Prompt:
    """A prompt as it is stored, block by block."""

    text: bytearray = field(default_factory=bytearray)
    last: int | None = None
    blocks: int = 0
    whole: int = 0  # pieces completed so far
    hash: int = chunks.seed(MODEL)


def _steps(table: ByteTable, seeds: Sequence[int], turns: Sequence[int], blocks: int, engine: int) -> Iterator[_Step]:
    """Prefills of one prompt after the other: `blocks` of them a step, and as many dropped once the cache is full.
    turns: by step, the place of its seed."""
    prompt, cached = _Prompt(), deque[int]()
    rngs = [random.Random(seed * 100 + engine) for seed in seeds]
    for rng in (rngs[turn] for turn in turns):
        events: list[dict[str, object]] = []
        completed: list[int] = []
        left = blocks
        while left:
            if prompt.blocks == PROMPT:
                prompt = _Prompt()
            number = min(left, PROMPT - prompt.blocks)
            events.append(_stored(table, rng, prompt, number, cached))
            completed += _completed(prompt)
            left -= number
        dropped = [cached.popleft() for _ in range(max(0, len(cached) - CACHE))]
        if dropped:
            events.append({"type": "BlockRemoved", "block_hashes": dropped, "medium": "GPU", "group_idx": 0})
        yield _Step(msgspec.msgpack.encode([time.time(), events, 0]), completed, blocks + len(dropped))


def _stored(
    table: ByteTable, rng: random.Random, prompt: _Prompt, number: int, cached: deque[int]
) -> dict[str, object]:
    hashes = [rng.getrandbits(64) for _ in range(number)]
    ids = [rng.randrange(len(table.pieces)) for _ in range(number * BLOCK)]
    prompt.text += table.decode(ids)
    parent, prompt.last = prompt.last, hashes[-1]
    prompt.blocks += number
    cached.extend(hashes)
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": ids,
        "block_size": BLOCK, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [None] * number,
        "group_idx": 0, "kv_cache_spec_kind": "full_attention",
    }  # fmt: skip


def _completed(prompt: _Prompt) -> list[int]:
    first = prompt.whole
    found = chunks.pieces(bytes(prompt.text[first * chunks.PIECE :]), prompt.hash)
    if found:
        prompt.whole += len(found)
        prompt.hash = found[-1]
    return [key for number, key in enumerate(found, first + 1) if chunks.ends_chunk(number)]


# The other processes


@contextmanager
def _agent(folder: Path, engine: _Engine, url: str) -> Iterator[psutil.Process]:
    """The agent beside an engine, as deployed, but it publishes every chunk at once and does not warm up from peers."""
    config = {
        "pool": POOL, "replica": engine.name, "model": MODEL, "modelFolder": "builtin://tiny-chat",
        "engineUrl": engine.url, "eventsEndpoint": engine.endpoint, "replayEndpoint": engine.replay_endpoint,
        "directoryUrl": url, "listen": {"port": 0}, "warmup": {"enabled": False}, "publishRate": 1e6,
    }  # fmt: skip
    path = folder / f"{engine.name}.json"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "plumage_engine.agent", "--config", str(path), "--log-level", "error"]
    with _ended(subprocess.Popen(command)) as process:
        yield psutil.Process(process.pid)


@contextmanager
def _router(url: str, names: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "plumage_bench.benches.directory.router_process", url, POOL, "0", *names]
    with _ended(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)) as process:
        output: IO[str] | None = process.stdout
        if output is None or output.readline() != "following\n":
            raise RuntimeError("the router process did not start; its message is above")
        yield process


@contextmanager
def _ended(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process  # type: ignore[misc]
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cpu(processes: Sequence[psutil.Process]) -> float:
    """Seconds of all their threads, in user and in kernel mode."""
    return float(sum(times.user + times.system for times in (process.cpu_times() for process in processes)))
