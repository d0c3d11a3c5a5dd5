"""What a client loses when it changes early bytes of its prompts, whether the router names the cause, and
what sorting tools repairs.

Two local pools of two simulated engines, made from manifests: the default, and one with `router.sortTools`. Agents of
one kind share instructions and tools. Each keeps a conversation of several turns: it appends the model's answer and a
tool's result. There are three kinds of client:

- steady: only appends;
- tools: sends tools, and the keys of their JSON, in another order in each turn;
- date: has the time of day in the system prompt.

Each pair has instructions, tools and tasks of its own, so nothing of it is cached before. Answers are greedy streams.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import httpx

from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys
from plumage_bench.local_pool import LocalPool, local_pool
from plumage_bench.pairs import paired_ratio

__all__ = ["run"]

_CELLS: Final = (("steady", False), ("tools", False), ("tools", True), ("date", False))  # client, and sortTools
_NAMED: Final = {"tools": "Order", "date": "DateOrNumber"}  # the router's causes
_TIMEOUT = 120.0
_WORDS: Final = ("plan", "read", "write", "check", "file", "test", "open", "close", "run", "build", "move", "merge")


@dataclass(frozen=True, slots=True)
class Shape:
    """agents: conversations at a time. Lengths are bytes of text."""

    agents: int
    turns: int
    instructions: int = 6000
    tools: int = 12
    result: int = 1500


@dataclass(frozen=True, slots=True)
class Served:
    """Sums over the requests of one cell. computed: prompt tokens that were not cached. breaks: by the router's
    cause. ttft: mean seconds."""

    requests: int
    prompt: int
    computed: int
    ttft: float
    breaks: Mapping[str, int]


def spec(*, sort_tools: bool) -> dict[str, Any]:
    """The manifest's `spec`. With two replicas, the router has a choice."""
    made: dict[str, Any] = {
        "model": {"uri": "builtin://tiny-chat"},
        "engine": {"runtime": "Simulator", "simulator": {"device": {"preset": "GPU"}}},
        "replicas": 2,
    }
    return {**made, "router": {"sortTools": True}} if sort_tools else made


def run(context: Context) -> Report:
    """Options: pairs."""
    shape = Shape(4, 4) if context.quick else Shape(8, 8)
    pairs = context.count("pairs", 5)
    found: dict[tuple[str, bool], list[Served]] = {cell: [] for cell in _CELLS}
    with tempfile.TemporaryDirectory(prefix="plm-") as runtime, ExitStack() as stack:
        pools = {
            sort: stack.enter_context(local_pool(Path(runtime), spec(sort_tools=sort), "sorted" if sort else "default"))
            for sort in (False, True)
        }
        with context.progress("agents", pairs * len(_CELLS)) as advance:
            for pair in range(pairs):
                for client, sort in _CELLS:
                    seed = f"{context.seed} {pair} {client} {sort}"
                    found[client, sort].append(asyncio.run(_cell(pools[sort], client, shape, seed)))
                    advance(1)
    return _report(found, shape)


async def _cell(pool: LocalPool, client: str, shape: Shape, seed: str) -> Served:
    rng = random.Random(seed)
    instructions = _text(rng, shape.instructions)
    tools = [_tool(rng, number) for number in range(shape.tools)]
    limits = httpx.Limits(max_connections=shape.agents)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{pool.port}", timeout=_TIMEOUT, limits=limits, trust_env=False
    ) as http:
        before = await _breaks(http)
        agents = [
            _Agent(http, client, instructions, tools, random.Random(f"{seed} {number}"), shape)
            for number in range(shape.agents)
        ]
        await asyncio.gather(*(agent.work() for agent in agents))
        breaks = await _breaks(http) - before
    asked = [one for agent in agents for one in agent.asked]
    prompt, cached = sum(one[0] for one in asked), sum(one[1] for one in asked)
    return Served(len(asked), prompt, prompt - cached, fmean(one[2] for one in asked), dict(breaks))


class _Agent:
    """One conversation. `asked`: prompt tokens, cached tokens and seconds to the first token of each turn."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        client: str,
        instructions: str,
        tools: list[Any],
        rng: random.Random,
        shape: Shape,
    ) -> None:
        self.asked: list[tuple[int, int, float]] = []
        self._http, self._client, self._instructions, self._tools = http, client, instructions, tools
        self._rng, self._shape = rng, shape

    async def work(self) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Task: {_text(self._rng, 400)}"}]
        for turn in range(self._shape.turns):
            answer = await self._ask(turn, messages)
            call = {"id": f"call-{turn}", "type": "function", "function": {"name": "tool_0", "arguments": "{}"}}
            result = _text(self._rng, self._shape.result)
            messages += [
                {"role": "assistant", "content": answer, "tool_calls": [call]},
                {"role": "tool", "content": result, "tool_call_id": f"call-{turn}"},
            ]

    async def _ask(self, turn: int, messages: list[dict[str, Any]]) -> str:
        clock = f"It is {9 + turn // 60:02}:{turn % 60:02}. " if self._client == "date" else ""
        tools = [_shuffled(self._rng, tool) for tool in self._rng.sample(self._tools, len(self._tools))]
        body = {
            "model": "tiny-chat", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 16,
            "temperature": 0, "tools": tools if self._client == "tools" else self._tools,
            "messages": [{"role": "system", "content": clock + self._instructions}, *messages],
        }  # fmt: skip
        began, first, pieces = time.perf_counter(), None, []
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                raise httpx.HTTPError(f"{answer.status_code}: {(await answer.aread())[:300]!r}")
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                first = first or time.perf_counter()
                event = json.loads(line[6:])
                pieces += [choice["delta"].get("content") or "" for choice in event["choices"]]
                if usage := event.get("usage"):
                    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                    self.asked.append((usage["prompt_tokens"], cached, (first or began) - began))
        return "".join(pieces)


async def _breaks(http: httpx.AsyncClient) -> Counter[str]:
    page = (await http.get("/metrics")).text
    lines = re.findall(r'^plumage_router_prefix_breaks_total\{cause="(\w+)"\} (\S+)$', page, re.M)
    return Counter({cause: int(float(count)) for cause, count in lines})


def _text(rng: random.Random, size: int) -> str:
    return " ".join(f"{rng.choice(_WORDS)}{rng.randrange(100)}" for _ in range(size // 6))[:size]


def _tool(rng: random.Random, number: int) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"path": {"type": "string", "description": _text(rng, 200)}}}
    function = {"name": f"tool_{number}", "description": _text(rng, rng.randrange(200, 1200)), "parameters": parameters}
    return {"type": "function", "function": function}


def _shuffled(rng: random.Random, tool: Mapping[str, Any]) -> dict[str, Any]:
    """The same JSON with its keys in another order."""
    items = list(tool.items())
    rng.shuffle(items)
    return {key: _shuffled(rng, value) if isinstance(value, dict) else value for key, value in items}


def _report(found: Mapping[tuple[str, bool], Sequence[Served]], shape: Shape) -> Report:
    def ratio(figure: str, over: tuple[str, bool], under: tuple[str, bool]) -> Any:
        return paired_ratio(*([float(getattr(one, figure)) for one in found[cell]] for cell in (over, under)))

    computed = ratio("computed", ("tools", False), ("tools", True))
    ttft = ratio("ttft", ("tools", False), ("tools", True))
    date = ratio("computed", ("date", False), ("steady", False))
    broken = shape.agents * (shape.turns - 1)
    shares = {
        client: fmean(one.breaks.get(cause, 0) / broken for one in found[client, False])
        for client, cause in _NAMED.items()
    }
    false = sum(sum(one.breaks.values()) for cell in (("steady", False), ("tools", True)) for one in found[cell])
    keys: dict[str, Figure] = {
        **interval_keys("breaker_gain", computed),
        **interval_keys("ttft_gain", ttft),
        **interval_keys("cost_of_date", date),
        "named_order": round(shares["tools"], 3),
        "named_date": round(shares["date"], 3),
        "false_breaks": false,
    }
    rows = [_row(client, sort, found[client, sort]) for client, sort in _CELLS]
    table = ResultTable(
        "Agents whose clients change early bytes",
        ("client", "sortTools", "requests", "hit ratio", "mean TTFT, ms", "breaks named"),
        rows,
        f"Computed prompt tokens of tools in changing order, off ÷ on: {computed}. Mean TTFT, off ÷ on: {ttft}. "
        f"Computed tokens, date ÷ steady: {date}. {broken} turns of each pair follow another one.",
    )
    data = {f"{client}, sortTools {sort}": [_plain(one) for one in found[client, sort]] for client, sort in _CELLS}
    return Report(keys, (table,), lambda figure: _plot(figure, found), data)


def _row(client: str, sort: bool, served: Sequence[Served]) -> tuple[Any, ...]:
    computed = sum(one.computed for one in served) / sum(one.prompt for one in served)
    breaks = ", ".join(f"{cause} {count}" for cause, count in sorted(_total(served).items()) if count)
    ttft = round(1000 * fmean(one.ttft for one in served))
    return client, "on" if sort else "off", sum(one.requests for one in served), round(1 - computed, 3), ttft, breaks


def _total(served: Sequence[Served]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in served:
        total.update(one.breaks)
    return total


def _plain(one: Served) -> dict[str, Any]:
    return {"prompt": one.prompt, "computed": one.computed, "ttft": one.ttft, "breaks": dict(one.breaks)}


def _plot(figure: Any, found: Mapping[tuple[str, bool], Sequence[Served]]) -> None:
    axes = figure.subplots()
    labels = [f"{client}{', sorted' if sort else ''}" for client, sort in _CELLS]
    axes.bar(labels, [fmean(one.computed / one.prompt for one in found[cell]) for cell in _CELLS])
    axes.set_ylabel("share of prompt tokens that were computed")
