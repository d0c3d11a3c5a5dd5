"""Real vLLM inside this process, driven step by step, for the vLLM benchmarks and tests/vllm.

There are no background threads: requests arrive and are aborted at steps that a seed chose, so that a run repeats. This
module imports nothing of vLLM. `prepare_environment` must run before the first import of vLLM or torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = [
    "GPU_ARGUMENTS",
    "SCHEDULER",
    "Answer",
    "Engine",
    "Prompt",
    "Run",
    "plugin_arguments",
    "prepare_environment",
    "running",
]

SCHEDULER = "plumage_engine.vllm.scheduler.make_scheduler"
GPU_ARGUMENTS: Mapping[str, Any] = {
    "block_size": 16,
    "num_gpu_blocks_override": None,
    "gpu_memory_utilization": 0.9,
    "enforce_eager": False,
    "async_scheduling": None,
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
}
"""Arguments of vLLM on a GPU, where `running` has others: vLLM's defaults, but without torch.compile, which starts
slowly."""
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def prepare_environment() -> None:
    """Sets the environment that vLLM reads, unless the caller has set it: in process, on a CPU, quiet, offline."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@dataclass(frozen=True, slots=True)
class Prompt:
    """tokens: its ids. answer: tokens to generate. step: the engine step before which it arrives. abort: steps after
    its arrival at which its client disconnects; None: never. group: for the plugin's Oracle; None: it gets nothing.
    sent: the client's `kv_transfer_params`."""

    name: str
    tokens: tuple[int, ...]
    answer: int
    step: int = 0
    abort: int | None = None
    group: int | None = None
    sent: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Answer:
    """tokens: generated so far. finished: whether it is complete. cached: prompt tokens found in the cache."""

    tokens: tuple[int, ...] = ()
    finished: bool = False
    cached: int = 0
    top: Sequence[Mapping[int, float]] = ()
    """For each token the log probabilities of the likeliest tokens, if they were requested."""


@dataclass(slots=True)
class Run:
    """Answers by the prompt's name, and the number of preemptions and engine steps."""

    answers: dict[str, Answer] = field(default_factory=dict)
    preemptions: int = 0
    steps: int = 0


class Engine:
    """vLLM's LLMEngine in this process. `llm` is the engine itself, `scheduler` and `pool` its live parts."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.core: Any = llm.engine_core.engine_core
        self.scheduler: Any = self.core.scheduler
        self.pool: Any = self.scheduler.kv_cache_manager.block_pool
        self._preemptions = 0
        self._count_preemptions()

    def serve(self, prompts: Sequence[Prompt], top: int | None = None, steps: int = 1_000_000) -> Run:
        """Serve the prompts greedily until all are answered or aborted. top: also return the log probabilities of this
        many tokens at each position. RuntimeError if `steps` engine steps do not suffice."""
        run, waiting = Run(), sorted(prompts, key=lambda prompt: prompt.step, reverse=True)
        aborts = {prompt.name: prompt.step + prompt.abort for prompt in prompts if prompt.abort is not None}
        before = self._preemptions
        while waiting or self.llm.has_unfinished_requests():
            if run.steps > steps:
                raise RuntimeError(f"{steps} steps did not answer all; {len(waiting)} had not arrived yet")
            while waiting and waiting[-1].step <= run.steps:
                self._add(run, waiting.pop(), top)
            self._abort(aborts, run.steps)
            self._step(run)
            run.steps += 1
        run.preemptions = self._preemptions - before
        return run

    def _add(self, run: Run, prompt: Prompt, top: int | None) -> None:
        from vllm import SamplingParams

        arguments = {"plumage_group": prompt.group, "kv_transfer_params": prompt.sent}
        wanted = SamplingParams(
            max_tokens=prompt.answer,
            temperature=0.0,
            ignore_eos=True,
            logprobs=top,
            detokenize=False,
            extra_args={name: value for name, value in arguments.items() if value is not None} or None,
        )
        self.llm.add_request(prompt.name, {"prompt_token_ids": list(prompt.tokens)}, wanted)
        run.answers[prompt.name] = Answer()

    def _abort(self, aborts: dict[str, int], now: int) -> None:
        due = [name for name, step in aborts.items() if step <= now]
        if due:
            self.llm.abort_request(due)
        for name in due:
            del aborts[name]

    def _step(self, run: Run) -> None:
        for output in self.llm.step():
            answer, given = run.answers[output.request_id], output.outputs[0]
            answer.tokens, answer.finished = tuple(given.token_ids), given.finish_reason == "length"
            answer.cached = output.num_cached_tokens or 0
            if given.logprobs:
                answer.top = [{token: entry.logprob for token, entry in place.items()} for place in given.logprobs]

    def _count_preemptions(self) -> None:
        own = self.scheduler._preempt_request

        def counted(*given: Any, **named: Any) -> Any:
            self._preemptions += 1
            return own(*given, **named)

        self.scheduler._preempt_request = counted

    def close(self) -> None:
        """Release workers, memory and torch's process groups, so that the next engine can start."""
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self.llm.engine_core.shutdown()
        del self.llm, self.core, self.scheduler, self.pool
        cleanup_dist_env_and_memory()


@contextmanager
def _asynchronous(wanted: bool) -> Iterator[None]:
    """vLLM's CPU platform disables asynchronous scheduling as "not required". It works there, so a test may enable
    it."""
    from vllm.platforms import current_platform

    kind: Any = type(current_platform)
    if not wanted or not current_platform.is_cpu():
        yield
        return
    own = kind.check_and_update_config

    def check_and_update_config(cls: Any, config: Any) -> None:
        own(config)
        config.scheduler_config.async_scheduling = True

    kind.check_and_update_config = classmethod(check_and_update_config)
    try:
        yield
    finally:
        kind.check_and_update_config = own


def _register_kernels_once() -> None:
    """Each start of an engine on a CPU searches every module for Triton kernels to replace: 0.25 s, half of the start.
    Kernels that were replaced before in this process need no further search."""
    if find_spec("vllm.triton_utils.dispatcher") is None:  # another version
        return
    from vllm.triton_utils import dispatcher

    own = dispatcher.register_kernels
    if getattr(own, "__name__", "") == "register_new":
        return

    def register_new(overrides: Mapping[str, Any]) -> None:
        if not overrides.keys() <= dispatcher._registry.keys():
            own(overrides)

    dispatcher.register_kernels = register_new


@contextmanager
def running(model: Path, **arguments: Any) -> Iterator[Engine]:
    """An engine for the time of a `with`. arguments: of vLLM's EngineArgs, added to those here or instead of them; with
    async_scheduling=True it is asynchronous on a CPU too."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    chosen: dict[str, Any] = {
        "block_size": 32,
        "num_gpu_blocks_override": 512,
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "async_scheduling": False,
        "gpu_memory_utilization": 0.4,
        "use_tqdm_on_load": False,
    }
    chosen |= arguments
    _register_kernels_once()
    with _asynchronous(chosen["async_scheduling"]):
        engine = Engine(LLMEngine.from_engine_args(EngineArgs(model=str(model), **chosen)))
    try:
        yield engine
    finally:
        engine.close()


def plugin_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """EngineArgs that enable the plugin, as `--scheduler-cls` and `--additional-config` do. settings: as in JSON."""
    return {"scheduler_cls": SCHEDULER, "additional_config": {"plumage": dict(settings)}}
