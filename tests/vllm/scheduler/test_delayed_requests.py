"""Requests that vLLM delays or keeps apart: grammars, adapters, salts, prompts in small chunks. Answers stay vLLM's."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plumage_bench.vllm.engine import Engine, plugin_arguments

BLOCK, RANK = 32, 8
FEATHER = plugin_arguments({"feather": {"policy": "ChtOrder"}, "eviction": None})
Asked = tuple[str, dict[str, Any], dict[str, Any]]
"""Name, prompt, and further arguments of `add_request`."""


def prompts(count: int = 24) -> list[list[int]]:
    """In two groups, alternating."""
    rng = random.Random(1)
    shared = [rng.choices(range(97, 122), k=3 * BLOCK) for _ in range(2)]
    return [shared[number % 2] + rng.choices(range(97, 122), k=9) for number in range(count)]


def served(engine: Engine, asked: Sequence[Asked], **sampling: Any) -> dict[str, tuple[int, ...]]:
    from vllm import SamplingParams

    for name, prompt, more in asked:
        wanted = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True, **sampling, **more.pop("sampling", {})}
        engine.llm.add_request(name, prompt, SamplingParams(**wanted), **more)
    answers: dict[str, tuple[int, ...]] = {}
    while engine.llm.has_unfinished_requests():
        answers.update({output.request_id: tuple(output.outputs[0].token_ids) for output in engine.llm.step()})
    return answers


def both(
    start_engine: Callable[..., Engine], ask: Callable[[], Sequence[Asked]], **arguments: Any
) -> tuple[Engine, dict[str, tuple[int, ...]]]:
    """The same requests with stock vLLM and with FEATHER. Returns the latter's engine, and the answers of both."""
    expected = served(start_engine(**arguments), ask())
    engine = start_engine(**arguments, **FEATHER)
    assert served(engine, ask()) == expected
    assert len(expected) == len(ask())
    assert engine.scheduler.plumage.guards["feather"].on, engine.scheduler.plumage.guards["feather"].reason
    assert len(engine.scheduler.plumage.order.queue) == engine.scheduler.plumage.order.queue.active == 0
    return engine, expected


def test_requests_wait_for_their_grammar(start_engine: Callable[..., Engine]) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    def ask() -> list[Asked]:
        choice = {
            "sampling": {"structured_outputs": StructuredOutputsParams(choice=["yes", "no"]), "ignore_eos": False}
        }
        made = enumerate(prompts())
        return [(str(number), {"prompt_token_ids": ids}, dict(choice) if number % 2 else {}) for number, ids in made]

    _, answers = both(start_engine, ask, max_num_seqs=4)
    words = {bytes(token for token in answers[str(number)] if token < 256) for number in range(1, 24, 2)}
    assert all(len(answer) <= 4 for number, answer in answers.items() if int(number) % 2), words


def test_salt_separates_prefixes(start_engine: Callable[..., Engine]) -> None:
    def ask() -> list[Asked]:
        made = enumerate(prompts())
        return [(str(number), {"prompt_token_ids": ids, "cache_salt": f"{number % 3}"}, {}) for number, ids in made]

    engine, _ = both(start_engine, ask, max_num_seqs=4)
    candidates: list[Any] = []
    own = engine.scheduler.plumage.order.queue.insert
    engine.scheduler.plumage.order.queue.insert = lambda candidate: (candidates.append(candidate), own(candidate))
    served(engine, [(f"again {name}", prompt, more) for name, prompt, more in ask()])
    assert len({candidate.vector[0] for candidate in candidates}) == 2 * 3


def test_chunked_prompts_keep_answers(start_engine: Callable[..., Engine]) -> None:
    def ask() -> list[Asked]:
        return [(str(number), {"prompt_token_ids": ids}, {}) for number, ids in enumerate(prompts())]

    both(start_engine, ask, max_num_batched_tokens=64, long_prefill_token_threshold=40, max_num_seqs=6)


def test_adapters_in_few_slots_keep_answers(start_engine: Callable[..., Engine], tmp_path: Path) -> None:
    """Three adapters and one slot: a request whose adapter has no slot is delayed, and served at the end. All requests
    have an adapter: on a CPU stock vLLM answers others differently in each batch with adapters."""
    from vllm.lora.request import LoRARequest

    folders = [write_adapter(tmp_path / f"adapter-{number}", number) for number in range(3)]

    def ask() -> list[Asked]:
        made = []
        for number, ids in enumerate(prompts()):
            one = number % 3
            adapter = LoRARequest(f"a{one}", one + 1, str(folders[one]))
            made.append((str(number), {"prompt_token_ids": ids}, {"lora_request": adapter}))
        return made

    both(start_engine, ask, enable_lora=True, max_loras=1, max_lora_rank=RANK, max_num_seqs=4)


def write_adapter(folder: Path, seed: int) -> Path:
    """A LoRA for the tiny model's query and value projections."""
    import torch
    from safetensors.torch import save_file

    random_ = torch.Generator().manual_seed(seed)
    folder.mkdir()
    wanted = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(wanted))
    weights = {}
    for layer in range(2):
        for target in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, 64, generator=random_).to(torch.bfloat16)
            weights[f"{name}.lora_B.weight"] = torch.randn(64, RANK, generator=random_).to(torch.bfloat16)
    save_file(weights, folder / "adapter_model.safetensors")
    return folder
