"""`plumage bench truth`: compares the hit tokens that the router predicts before it sends a request with those that
vLLM finds.

All parts are real, each in its own process: vLLM's API server and engine on the CPU with the plugin and a generated
model with 32,000 tokens, an agent, a Valkey, a router. There are three settings: a cache that evicts nothing; a cache
of 200 blocks, which the requests fill several times; and the same with host memory. Clients pause for a moment between
an answer and their next request. Four of them run at a time, except where the table says "alone".

Five requests come first and are not counted. From their answers the router learns the number of bytes in a token of
this model. Without them it would predict the first concurrent prompts with the default number.

error_tokens_p95: of all requests. error_tokens_max: of all but those where eviction races with the request, which
happens if several clients share a cache that evicts. Errors are also given in chunks of the prompt's mean size: 256
bytes have about 60 to 80 tokens of text, and up to 256 tokens of text that the tokenizer was not trained on.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from plumage_bench.benches.truth.fleet import Answer, Fleet, Setting, agent_cost, fleet
from plumage_bench.benches.truth.talk import ADAPTERS, KINDS, Texts
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.ours import Ours
from plumage_bench.quantiles import quantile
from plumage_bench.vllm.engine import prepare_environment

__all__ = ["run"]

_THINKING = (0.2, 0.6)  # range of the random seconds between an answer and the client's next request
_CLIENTS = 4
_SMALL = "--num-gpu-blocks-override=200"


@dataclass(frozen=True, slots=True)
class Part:
    """setting, kind: of `talk`. requests: in a full run. clients: concurrent ones."""

    setting: str
    kind: str
    requests: int
    clients: int = _CLIENTS

    @property
    def label(self) -> str:
        where = "" if self.setting == "roomy" else f", {self.setting}"
        return f"{self.kind}{where}{', alone' if self.clients == 1 else ''}"

    @property
    def races(self) -> bool:
        return self.setting != "roomy" and self.clients > 1


PARTS = (
    Part("roomy", "chat", 220),
    Part("roomy", "multi-turn", 300),
    Part("roomy", "tools", 180),
    Part("roomy", "completions", 180),
    Part("roomy", "token ids", 180),
    Part("roomy", "unicode", 180),
    Part("roomy", "salts", 120),
    Part("roomy", "adapters", 120),
    Part("roomy", "burst", 160),
    Part("evictions", "documents", 90, clients=1),
    Part("evictions", "documents", 90),
    Part("host tier", "documents", 90, clients=1),
    Part("host tier", "documents", 90),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. error: predicted − found, in tokens. chunks: the same in chunks of its own prompt."""

    part: Part
    error: int
    chunks: float
    predicted: int
    found: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of one setting's agent, in µs a block event: its own figure (indexing and publishing), the same with
    decoding, and that of the whole process."""

    setting: str
    blocks: int
    counted: float
    with_decoding: float
    process: float
    evictions: int
    host_admissions: int


def run(context: Context) -> Report:
    prepare_environment()
    from tokenizers import Tokenizer

    from plumage_engine.vllm.tiny_model import write_model

    share = 10 if context.quick else 1
    asked: list[Asked] = []
    costs: list[Cost] = []
    with TemporaryDirectory(prefix="plm") as name, context.progress("requests", _total(share)) as advance:
        folder = Path(name)
        model = write_model(folder / "model", tokenizer="bpe")
        tokenizer: Any = Tokenizer.from_file(str(model / "tokenizer.json"))
        texts = Texts(0, lambda text: list(tokenizer.encode(text).ids))
        for setting in _settings(folder):
            with fleet(setting, model, folder / setting.name.replace(" ", "-")) as made:
                parts = [part for part in PARTS if part.setting == setting.name]
                before = made.agent_cpu
                asked += asyncio.run(_play(made, parts, texts, context.seed, share, advance))
                costs.append(_cost(setting.name, made, model, before))
    return _report(asked, costs)


def _total(share: int) -> int:
    return sum(_scripts(part, share) * KINDS[part.kind][1] for part in PARTS)


def _scripts(part: Part, share: int) -> int:
    return max(2, -(-part.requests // (KINDS[part.kind][1] * share)))


def _settings(folder: Path) -> list[Setting]:
    named = {name: write_adapter(folder / name, number) for number, name in enumerate(ADAPTERS)}
    lora = [f"{name}={path}" for name, path in named.items()]
    tier = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "HostTierSpec",
            "spec_module_path": "plumage_engine.vllm.offload.spec",
            "cpu_bytes_to_use": 64 << 20,
        },
    }
    tiered = Ours({"engine.hostMemory.capacity": "64Mi"}, "VLLM")
    return [
        Setting(
            "roomy",
            (
                "--num-gpu-blocks-override=20000", "--enable-lora", "--max-loras=2", "--max-lora-rank=8",
                "--lora-modules", *lora, "--enable-auto-tool-choice", "--tool-call-parser=hermes",
            ),
            named,
        ),
        Setting("evictions", (_SMALL,)),
        Setting("host tier", (_SMALL, f"--kv-transfer-config={json.dumps(tier)}"), ours=tiered),
    ]  # fmt: skip


def write_adapter(folder: Path, seed: int, rank: int = 8, width: int = 64, layers: int = 2) -> Path:
    """A LoRA for the query and value projections of the tiny model."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    folder.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    weights = {}
    for layer in range(layers):
        for target in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            weights[f"{name}.lora_A.weight"] = torch.randn(rank, width, generator=generator).to(torch.bfloat16)
            weights[f"{name}.lora_B.weight"] = torch.randn(width, rank, generator=generator).to(torch.bfloat16)
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


async def _play(made: Fleet, parts: Sequence[Part], texts: Texts, seed: int, share: int, advance: Any) -> list[Asked]:
    """Parts with equally many clients run side by side, in an order that the seed draws."""
    asked: list[Asked] = []
    await KINDS["chat"][0](made.ask, texts, random.Random(f"before {seed}"))
    for clients in (1, _CLIENTS):
        scripts = [
            (part, number) for part in parts if part.clients == clients for number in range(_scripts(part, share))
        ]
        random.Random(seed).shuffle(scripts)
        gate = asyncio.Semaphore(clients)

        async def play(part: Part, number: int, gate: asyncio.Semaphore = gate) -> None:
            rng = random.Random(f"{seed} {part.label} {number}")

            async def ask(path: str, body: Any) -> Answer:
                await asyncio.sleep(rng.uniform(*_THINKING))
                answer = await made.ask(path, {"temperature": 0, "ignore_eos": True, **body})
                asked.append(_noted(part, answer))
                advance(1)
                return answer

            async with gate:
                await KINDS[part.kind][0](ask, texts, rng)

        await asyncio.gather(*(play(part, number) for part, number in scripts))
    await made.close()
    return asked


def _noted(part: Part, answer: Answer) -> Asked:
    error = answer.predicted - answer.found
    of_a_chunk = answer.tokens / max(1, answer.chunks)
    return Asked(part, error, abs(error) / of_a_chunk, answer.predicted, answer.found, answer.tokens)


def _cost(setting: str, made: Fleet, model: Path, before: float) -> Cost:
    stats, engine = made.agent_stats(), made.engine_stats()
    process = made.agent_cpu - before
    seconds, blocks = agent_cost(list(made.events), model)
    evicted = engine["counters"].get("evictions", {})
    return Cost(
        setting,
        blocks,
        stats["eventCpuMicros"],
        1e6 * seconds / max(1, blocks),
        1e6 * process / max(1, blocks),
        sum(evicted.values()),
        sum(engine["counters"].get("host_admissions", {}).values()),
    )


# -- results ---------------------------------------------------------------------------------------------------------


def _report(asked: Sequence[Asked], costs: Sequence[Cost]) -> Report:
    errors = [abs(one.error) for one in asked]
    calm = [one for one in asked if not one.part.races]
    worst_cost = max(costs, key=lambda cost: cost.with_decoding)
    keys: dict[str, int | float | str] = {
        "error_tokens_p95": quantile(errors, 0.95),
        "error_tokens_max": max(abs(one.error) for one in calm),
        "agent_us_per_block": round(worst_cost.with_decoding, 2),
        "error_chunks_max": round(max(one.chunks for one in calm), 2),
        "error_tokens_max_races": max((abs(one.error) for one in asked if one.part.races), default=0),
        "found_share": round(sum(one.found for one in asked) / sum(one.tokens for one in asked), 3),
        "requests": len(asked),
    }
    data = {part.label: [[one.predicted, one.found, one.tokens] for one in asked if one.part == part] for part in PARTS}
    return Report(keys, [_kinds(asked), _costs(costs)], lambda figure: _plot(figure, asked), data)


def _kinds(asked: Sequence[Asked]) -> ResultTable:
    rows: list[tuple[str | int | float, ...]] = []
    for part in PARTS:
        own = [one for one in asked if one.part == part]
        errors = [abs(one.error) for one in own]
        rows.append(
            (
                part.label, len(own), round(sum(one.tokens for one in own) / len(own)),
                round(sum(one.found for one in own) / sum(one.tokens for one in own), 3),
                round(sum(one.error for one in own) / len(own), 1), quantile(errors, 0.50), quantile(errors, 0.95),
                max(errors), round(max(one.chunks for one in own), 2),
            )
        )  # fmt: skip
    columns = (
        "kind", "requests", "prompt", "found", "mean error", "p50", "p95", "max", "max, chunks",
    )  # fmt: skip
    notes = (
        "Tokens. found: share of prompt tokens that vLLM had cached. Error: predicted − found; percentiles of its size."
    )
    return ResultTable("Hit tokens predicted by the router, found by vLLM", columns, rows, notes)


def _costs(costs: Sequence[Cost]) -> ResultTable:
    rows = [
        (
            cost.setting, cost.blocks, round(cost.counted, 2), round(cost.with_decoding, 2), round(cost.process, 1),
            cost.evictions, cost.host_admissions,
        )
        for cost in costs
    ]  # fmt: skip
    columns = (
        "setting", "block events", "its own figure", "with decoding", "whole process", "evictions", "host admissions",
    )  # fmt: skip
    notes = (
        "µs of CPU a block event. With decoding: the run's own event batches, once more, in this process. The whole "
        "process also polls the engine, writes heartbeats and waits for messages, also without events."
    )
    return ResultTable("The agent", columns, rows, notes)


def _plot(figure: Any, asked: Sequence[Asked]) -> None:
    left, right = figure.subplots(1, 2)
    for races, colour in ((False, "tab:blue"), (True, "tab:orange")):
        own = [one for one in asked if one.part.races == races]
        label = "eviction races" if races else "all others"
        left.scatter([one.found for one in own], [one.predicted for one in own], s=6, color=colour, label=label)
        errors = sorted(abs(one.error) for one in own)
        right.plot(errors, [(place + 1) / len(errors) for place in range(len(errors))], color=colour, label=label)
    most = max(one.found for one in asked)
    left.plot([0, most], [0, most], color="black", linewidth=0.5)
    left.set_xlabel("hit tokens, found by vLLM")
    left.set_ylabel("hit tokens, predicted by the router")
    right.axvline(80, color="black", linestyle="--", linewidth=0.5)
    right.set_xlabel("error, tokens")
    right.set_ylabel("share of requests")
    left.legend()
