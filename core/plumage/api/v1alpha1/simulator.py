"""`spec.engine.simulator`: the engine without a GPU, and the device that it simulates."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from plumage import defaults
from plumage.api.v1alpha1.struct import Rule, Struct

__all__ = ["SimulatorDeviceSpec", "SimulatorSpec"]


class SimulatorDeviceSpec(Struct):
    """The cost of a step. A figure of a simulated device says nothing about a real one."""

    preset: Literal["GPU", "CPU"] = Field(
        defaults.DEVICE,
        description="GPU: the first request with another prefix in a batch costs much, further ones little. CPU: each "
        "one costs the same.",
    )
    time_scale_percent: Annotated[int, Field(ge=1, le=10_000)] = Field(
        defaults.TIME_SCALE_PERCENT,
        description="Duration of a modelled second, in percent: with 10 the simulation runs ten times faster.",
    )


class SimulatorSpec(Struct):
    """Size and speed of a simulated engine."""

    device: SimulatorDeviceSpec = Field(SimulatorDeviceSpec(), description="The device that is simulated.")
    block_size: Annotated[int, Field(ge=1, le=1024)] = Field(defaults.BLOCK_SIZE, description="Tokens in a KV block.")
    cache_blocks: Annotated[int, Field(ge=16, le=10_000_000)] = Field(
        defaults.CACHE_BLOCKS, description="KV blocks on the device."
    )
    host_blocks: Annotated[int, Field(ge=0, le=10_000_000)] | None = Field(
        None,
        description="KV blocks in host memory if engine.hostMemory is set. When absent, as many as on the device.",
    )
    max_num_seqs: Annotated[int, Field(ge=1, le=100_000)] = Field(
        defaults.MAX_NUM_SEQS, description="The most requests in a batch."
    )
    max_batched_tokens: Annotated[int, Field(ge=16, le=1_000_000)] = Field(
        defaults.MAX_BATCHED_TOKENS, description="Token budget of a step."
    )
    seed: Annotated[int, Field(ge=0, le=2**53)] = Field(
        defaults.SEED, description="Seed of a run that can be repeated. Each replica derives its own."
    )
    rules: ClassVar = (
        Rule(
            at="maxBatchedTokens",
            must="must be above maxNumSeqs: each running request takes one token of a step, and prompts use the others",
            cel="self.maxBatchedTokens > self.maxNumSeqs",
            reads=("max_num_seqs", "max_batched_tokens"),
            holds=lambda spec: spec.max_batched_tokens > spec.max_num_seqs,
        ),
    )
