"""`plumage bench vllm-steps`: times of real vLLM's steps, as a table for a simulated device.

One engine core on one CPU thread serves a small Llama with random weights (`tiny_model`, size m8). Prefill steps are
measured by the tokens computed and the cached tokens before them, decode steps by batch and context of each request.
Seconds are CPU time of the process, so other work on the machine has little effect. The shortest of a few repeats
counts. The kept table is `measured/vllm_cpu.json` (decision 0202).
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.vllm.engine import Engine, Prompt, Run, prepare_environment, running

__all__ = ["run"]

_BLOCK = 32
_TOKENS, _CONTEXTS = (32, 128, 512, 1024, 2048), (0, 1024, 2048, 4096, 8192)
_BATCHES, _DECODE_CONTEXTS = (1, 4, 16), (256, 1024, 2048)
_REPEATS, _STEPS = 2, 6
_MODEL = "m8"


def run(context: Context) -> Report:
    prepare_environment()
    from plumage_engine.vllm.tiny_model import write_model

    tokens, contexts = (_TOKENS[:2], _CONTEXTS[:2]) if context.quick else (_TOKENS, _CONTEXTS)
    batches, lengths = (_BATCHES[:2], _DECODE_CONTEXTS[:2]) if context.quick else (_BATCHES, _DECODE_CONTEXTS)
    rng = random.Random(context.seed)
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / _MODEL, size=_MODEL, seed=context.seed)
        arguments: dict[str, Any] = {
            "block_size": _BLOCK, "num_gpu_blocks_override": 1400, "max_model_len": 12_288,
            "max_num_batched_tokens": max(_TOKENS), "max_num_seqs": max(_BATCHES),
        }  # fmt: skip
        with (
            running(model, **arguments) as engine,
            context.progress(context.name, len(contexts) + len(batches)) as done,
        ):
            prefill = [_prefills(engine, length, tokens, rng, done) for length in contexts]
            decode = [_decodes(engine, batch, lengths, rng, done) for batch in batches]
    data: dict[str, Any] = {
        "model": _MODEL,
        "prefill": {"tokens": list(tokens), "context": list(contexts), "seconds": prefill},
        "decode": {"batch": list(batches), "context": list(lengths), "seconds": decode},
    }
    keys = {"prefill_ms": 1e3 * prefill[0][-1], "decode_ms": 1e3 * decode[0][0]}
    return Report(keys, (_prefill_table(data["prefill"]), _decode_table(data["decode"])), data=data)


def _drawn(rng: random.Random, count: int) -> tuple[int, ...]:
    """Ids of single bytes. The tokenizer's special tokens have higher ids."""
    return tuple(rng.randrange(200) for _ in range(count))


def _prefills(
    engine: Engine, context: int, tokens: Sequence[int], rng: random.Random, done: Callable[[int], None]
) -> list[float]:
    """Seconds by the number of tokens computed after `context` cached ones."""
    prefix = _drawn(rng, context)
    if prefix:
        engine.serve([Prompt(f"prefix {context}", prefix + _drawn(rng, 1), 1)])
    found = []
    for count in tokens:
        repeats = []
        for number in range(_REPEATS):
            prompt = Prompt(f"{context} {count} {number}", prefix + _drawn(rng, count), 1)
            start = process_time()
            answer = engine.serve([prompt]).answers[prompt.name]
            repeats.append(process_time() - start)
            if answer.cached != context:
                raise RuntimeError(f"{answer.cached} tokens were cached where {context} should be: no room in the pool")
        found.append(min(repeats))
    done(1)
    return found


def _decodes(
    engine: Engine, batch: int, contexts: Sequence[int], rng: random.Random, done: Callable[[int], None]
) -> list[float]:
    """Seconds of a step of `batch` requests, by the context of each."""
    found = []
    for length in contexts:
        asks = [Prompt(f"{batch} {length} {number}", _drawn(rng, length), 10_000) for number in range(batch)]
        for ask in asks:
            engine._add(Run(), ask, None)
        while engine.scheduler.waiting or any(one.num_computed_tokens < length for one in engine.scheduler.running):
            engine.llm.step()
        repeats = []
        for _ in range(_STEPS):
            start = process_time()
            engine.llm.step()
            repeats.append(process_time() - start)
        found.append(min(repeats))
        engine.llm.abort_request([ask.name for ask in asks])
        engine.llm.step()
    done(1)
    return found


def _prefill_table(found: dict[str, Any]) -> ResultTable:
    rows = [
        [length, *(1e3 * one for one in row)] for length, row in zip(found["context"], found["seconds"], strict=True)
    ]
    columns = ("tokens of context", *(f"{count} computed" for count in found["tokens"]))
    return ResultTable("Prefill, ms of CPU a step", columns, rows, "One request, one thread.")


def _decode_table(found: dict[str, Any]) -> ResultTable:
    rows = [[batch, *(1e3 * one for one in row)] for batch, row in zip(found["batch"], found["seconds"], strict=True)]
    columns = ("batch", *(f"{length} of context" for length in found["context"]))
    return ResultTable("Decode, ms of CPU a step", columns, rows, "Requests that share nothing.")
