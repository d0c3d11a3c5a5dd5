"""vLLM's executor over a modelled device; see the package.

The engine core calls `execute_model` with the scheduler's output and `sample_tokens` for the tokens. The device runs
one step after the other. With asynchronous scheduling a step begins when the one before it ends, and its output is a
future that is due at its end. vLLM makes an empty step while requests only wait for copies. It takes no time, but a
virtual clock advances by the millisecond that vLLM would sleep.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from plumage.errors import ConfigurationError
from plumage_bench.virtual_gpu.batch import Batch, Turn
from plumage_bench.virtual_gpu.clock import Clock, VirtualClock, WallClock
from plumage_bench.virtual_gpu.compat.executor import (
    EMPTY_MODEL_RUNNER_OUTPUT,
    Executor,
    FullAttentionSpec,
    GrammarOutput,
    KVCacheSpec,
    LoRARequest,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    VllmConfig,
    complaints,
)
from plumage_bench.virtual_gpu.config import read_config
from plumage_bench.virtual_gpu.grammar import Grammar
from plumage_bench.virtual_gpu.link import Link
from plumage_bench.virtual_gpu.pending import Pending, ready
from plumage_bench.virtual_gpu.speech import Answer, Speech
from plumage_bench.virtual_gpu.transfers import Transfers
from plumage_bench.virtual_gpu.vocabulary import make_speech
from plumage_engine.vllm.settings import read_settings

__all__ = ["VirtualGpuExecutor"]

_IDLE: Final = 0.001  # seconds that vLLM's engine core sleeps after a step that ran nothing
_HARMLESS: Final = frozenset({"update_max_model_len", "synchronize_device", "reset_mm_cache", "reset_encoder_cache"})


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that runs on the device, or waits for it."""

    turns: list[Turn]
    seconds: float
    copies: bool


class VirtualGpuExecutor(Executor):
    """One virtual GPU. clock: of the device. speech: its answers. link: to host memory. residents: requests with state
    on the device. busy_seconds, steps: totals of its work."""

    clock: Clock
    speech: Speech

    def _init_executor(self) -> None:
        _refuse(self.vllm_config)
        settings = read_settings(self.vllm_config.additional_config, os.environ)
        config = read_config(self.vllm_config.additional_config)
        feather = settings.feather if settings is not None else None
        size = self.cache_config.block_size
        self.clock = VirtualClock() if config.clock == "Virtual" else WallClock()
        self.busy_seconds, self.steps = 0.0, 0
        self._device = config.device()
        self.speech = make_speech(config, self.model_config)
        ordered = feather is not None and feather.order_batch
        self._batch = Batch(size, self._answer, measured=config.time_scale > 0, ordered=ordered)
        link = Link(self._device.copying, config.link_latency * config.time_scale)
        self._transfers = Transfers(link, self.clock, config.block_bytes(size))
        self._free_at = 0.0
        self._begun: _Step | None = None
        self._adapters: set[int] = set()
        given = self.cache_config.num_gpu_blocks_override
        self.cache_config.num_gpu_blocks_override = config.blocks(size, given)
        if config.async_scheduling is not None:  # the CPU platform has disabled it because of its own worker
            self.scheduler_config.async_scheduling = config.async_scheduling

    @property
    def link(self) -> Link:
        return self._transfers.link

    @property
    def residents(self) -> int:
        return len(self._batch)

    # -- a step ------------------------------------------------------------------------------------------------------

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """None, so that vLLM calls `sample_tokens`; for an empty step its output."""
        metadata = scheduler_output.kv_connector_metadata
        if metadata is not None:
            self._transfers.order(metadata)
        turns = self._batch.step(scheduler_output)
        if turns:
            self._begun = _Step(turns, self._device.seconds(self._batch.shape), metadata is not None)
            return ready(None) if non_block else None
        output = self._nothing(metadata is not None)
        return ready(output) if non_block else output

    def sample_tokens(self, grammar_output: GrammarOutput | None, non_block: bool = False) -> Any:
        """The step's output at its end; with `non_block` a future that is due then."""
        step, self._begun = self._begun, None
        assert step is not None, "sample_tokens without a step"
        due = self._free_at = max(self.clock.now(), self._free_at) + step.seconds
        self.busy_seconds += step.seconds
        self.steps += 1
        grammar = None if grammar_output is None else Grammar(grammar_output)
        pending = Pending(self.clock, due, lambda: self._output(step, grammar))
        return pending if non_block else pending.result()

    def _output(self, step: _Step, grammar: Grammar | None) -> ModelRunnerOutput:
        names = [turn.request_id for turn in step.turns]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[self._sampled(turn, grammar) for turn in step.turns],
            kv_connector_output=self._transfers.take_output() if step.copies else None,
        )

    def _sampled(self, turn: Turn, grammar: Grammar | None) -> list[int]:
        if turn.position is None:
            return []
        allowed = None if grammar is None else grammar.allowed(turn.request_id)
        answer = turn.resident.answer
        if allowed:
            return [self.speech.allowed_token(answer, turn.position, allowed)]
        return [self.speech.token(answer, turn.position)]

    def _nothing(self, copies: bool) -> ModelRunnerOutput:
        if not copies:
            return EMPTY_MODEL_RUNNER_OUTPUT
        if self.clock.virtual:
            due = self._transfers.link.next_due()
            idle = self.clock.now() + _IDLE
            self.clock.wait_until(idle if due is None else min(due, idle))
        return ModelRunnerOutput.with_kv_conn_output_only(self._transfers.take_output())

    def _answer(self, data: NewRequestData) -> Answer:
        asked = data.sampling_params
        return self.speech.answer(
            data.prompt_token_ids or (),
            seed=asked.seed if asked is not None else None,
            least=asked.min_tokens if asked is not None else 0,
            endless=asked is not None and asked.ignore_eos,
        )

    # -- calls of the engine core at start ---------------------------------------------------------------------------

    def get_kv_cache_specs(self) -> list[dict[str, KVCacheSpec]]:
        """Full attention in every layer, whatever the model has."""
        model = self.model_config
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=model.get_num_kv_heads(self.parallel_config),
            head_size=model.get_head_size(),
            dtype=model.dtype,
        )
        layers = range(model.get_num_layers(self.parallel_config))
        return [{f"model.layers.{layer}.self_attn.attn": spec for layer in layers}]

    def determine_available_memory(self) -> list[int]:
        """Enough memory for the configured blocks."""
        (specs,) = self.get_kv_cache_specs()
        blocks = self.cache_config.num_gpu_blocks_override
        return [blocks * sum(spec.page_size_bytes for spec in specs.values())]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["LBNHC"]]

    def set_kv_cache_layout(self, layout_name: str) -> None:
        """There are no tensors to lay out."""

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        """There is no cache to allocate."""

    def compile_or_warm_up_model(self) -> None:
        """There is no model."""

    def get_kv_connector_handshake_metadata(self) -> list[Any]:
        return [None]

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    # -- later calls -------------------------------------------------------------------------------------------------

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """ConfigurationError for all methods but those that have no effect on a device without memory."""
        if method not in _HARMLESS:
            raise ConfigurationError(f"the virtual GPU has no worker that could do {method!r}")
        return ready([None]) if non_block else [None]

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """An adapter changes hashes, not times."""
        self._adapters.add(lora_request.lora_int_id)
        return True

    def remove_lora(self, lora_id: int) -> bool:
        known = lora_id in self._adapters
        self._adapters.discard(lora_id)
        return known

    def pin_lora(self, lora_id: int) -> bool:
        return lora_id in self._adapters

    def list_loras(self) -> set[int]:
        return set(self._adapters)

    def sleep(self, level: int = 1) -> None:
        """ConfigurationError: nothing would be released, but a sleeping engine seems to save memory."""
        raise ConfigurationError(
            "the virtual GPU can't sleep: it holds no memory; start vLLM without --enable-sleep-mode"
        )

    def check_health(self) -> None:
        """The device can not fail."""

    def shutdown(self) -> None:
        """There is nothing to release."""


def _refuse(config: VllmConfig) -> None:
    """ConfigurationError for features that the device does not model, before vLLM builds on them."""
    parallel = config.parallel_config
    wrong = {
        "speculative decoding (--speculative-config)": config.speculative_config is not None,
        "more than one device (--tensor-parallel-size, --pipeline-parallel-size)": parallel.world_size > 1,
        "sleep mode (--enable-sleep-mode)": config.model_config.enable_sleep_mode,
        "pooling models (--runner pooling)": config.model_config.runner_type != "generate",
        "multimodal or encoder models": config.model_config.is_multimodal_model,
    }
    found = [what for what, is_so in wrong.items() if is_so] + complaints()
    if found:
        raise ConfigurationError("the virtual GPU does not model: " + "; ".join(found))
