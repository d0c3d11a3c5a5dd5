"""Real vLLM in virtual time: scheduler and block pool of an engine core in this process, over the virtual GPU.

Requests arrive at times of the device's own clock, which only its steps advance. So a run takes only the time of vLLM's
scheduler, and repeats exactly. This module imports nothing of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumage_bench.vllm.engine import SCHEDULER, prepare_environment

__all__ = ["Ask", "Outcome", "TimedEngine"]

_EXECUTOR = "plumage_bench.virtual_gpu.executor.VirtualGpuExecutor"
_OFF = {"feather": None, "eviction": None, "batchLimit": "Static"}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: token ids, number of tokens to answer, and arrival time in virtual seconds."""

    name: str
    tokens: Sequence[int]
    answer: int
    at: float


@dataclass(slots=True)
class Outcome:
    """first, end: times of the first and the last token. cached: prompt tokens found on the device; loaded: those found
    in host memory."""

    first: float = 0.0
    end: float = 0.0
    cached: int = 0
    loaded: int = 0


class TimedEngine:
    """One engine core. plumage: the plugin's settings as in JSON, and the device's as `virtualGpu`. A feature that is
    not named is off; without any, the scheduler is vLLM's own. arguments: of EngineArgs. Call `close` at the end."""

    def __init__(self, model: Path, plumage: Mapping[str, Any], **arguments: Any) -> None:
        prepare_environment()
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.core import EngineCore

        from plumage_bench.virtual_gpu.executor import VirtualGpuExecutor

        features = {name: value for name, value in plumage.items() if name != "virtualGpu"}
        device = {"clock": "Virtual", **plumage.get("virtualGpu", {})}
        tier = {name: features[name] for name in ("hostTier",) if name in features}  # installed by the scheduler itself
        given = EngineArgs(
            model=str(model),
            skip_tokenizer_init=True,
            enable_prefix_caching=True,
            distributed_executor_backend=_EXECUTOR,
            additional_config={"plumage": _OFF | tier, "virtualGpu": device},
            scheduler_cls=SCHEDULER if features else None,
            **arguments,
        )
        self.core: Any = EngineCore(given.create_engine_config(), VirtualGpuExecutor, log_stats=False)
        self.device: Any = self.core.model_executor
        self.scheduler: Any = self.core.scheduler
        self.clock = self.device.clock
        self._instant: float | None = None
        self._tier_guards: Mapping[str, Any] = {}
        if features:
            self._tier_guards = self.scheduler.plumage.guards
            self._switch_on({**_OFF, **features})

    def serve(self, asks: Sequence[Ask]) -> dict[str, Outcome]:
        """Serve all requests. Returns the outcomes by name."""
        coming = sorted(asks, key=lambda ask: ask.at, reverse=True)
        outcomes = {ask.name: Outcome() for ask in asks}
        while coming or self.scheduler.has_requests():
            if not self.scheduler.has_requests():
                self.clock.wait_until(coming[-1].at)
            while coming and coming[-1].at <= self.clock.now():
                self.submit(coming.pop())
            self.step(outcomes)
        return outcomes

    def submit(self, ask: Ask) -> None:
        """Pass the request to the scheduler, as the engine core does."""
        self._instant = ask.at
        self.core.add_request(*self.prepared(ask))
        self._instant = None

    def prepared(self, ask: Ask) -> tuple[Any, int]:
        """The request as vLLM's input thread makes it, including hashes, for the core's `add_request`."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        request = EngineCoreRequest(
            request_id=ask.name,
            prompt_token_ids=list(ask.tokens),
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=ask.answer, ignore_eos=True, detokenize=False),
            pooling_params=None,
            arrival_time=ask.at,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        prepared: tuple[Any, int] = self.core.preprocess_add_request(request)
        return prepared

    def _now(self) -> float:
        """The time for the features. A request that arrived during a step has waited since then."""
        return self.clock.now() if self._instant is None else self._instant

    def step(self, outcomes: Mapping[str, Outcome]) -> None:
        """One step of the core. outcomes: by name, of all requests in the engine; it notes their tokens there."""
        outputs, _ = self.core.step_fn()
        now = self.clock.now()
        for client in (outputs or {}).values():
            for output in client.outputs:
                outcome = outcomes[output.request_id]
                outcome.first = outcome.first or now
                outcome.end = now
                if output.prefill_stats is not None:
                    outcome.cached = output.prefill_stats.num_local_cached_tokens
                    outcome.loaded = output.prefill_stats.num_external_cached_tokens

    def close(self) -> None:
        self.core.shutdown()

    def _switch_on(self, plumage: Mapping[str, Any]) -> None:
        """Enables the plugin's features as its scheduler does, but with the device's clock."""
        from plumage.settings.plugin_config import PluginSettings
        from plumage_engine.vllm.features import Features

        self.scheduler.plumage = Features(self.scheduler, PluginSettings.model_validate(plumage), self._now)

    @property
    def failed(self) -> list[str]:
        """Requested features that are off, with the reason."""
        features = getattr(self.scheduler, "plumage", None)
        guards = {} if features is None else features.guards
        tier = self._tier_guards if features is not None else {}
        return [f"{name}: {guard.reason}" for name, guard in {**tier, **guards}.items() if not guard.on]
