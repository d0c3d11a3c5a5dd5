"""The virtual GPU's settings: `virtualGpu` in vLLM's `--additional-config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from plumage.errors import ConfigurationError
from plumage.options import refuse_given
from plumage.version_skew import Settings
from plumage_engine.simulator.engine.device import Device, make_device

__all__ = ["SECTION", "VirtualGpuConfig", "read_config"]

SECTION = "virtualGpu"

_GIB = 2**30


class VirtualGpuConfig(Settings):
    """preset, overrides: the device, see `plumage_engine.simulator.engine.device`. time_scale: 0.1 runs ten times
    faster than the model; 0 takes no time.

    The size of the KV cache is num_blocks, counted as in vLLM (which keeps one block for itself), else
    --num-gpu-blocks-override, else kv_gib of the *modelled* device's KV, for any model name.

    link_latency: seconds before the first byte of a copy over PCIe. async_scheduling: None leaves vLLM's choice, which
    is always no on a CPU platform. clock: "Virtual" does not sleep; time follows the model, and the caller in this
    process reads it there. seed, vocabulary, answer_tokens: see `speech`. "Words" are the tokenizer's whole words,
    "All" every id but the ends. answer_tokens: mean length of answers without another limit; None: no answer ends by
    itself.
    """

    preset: str = "gpu"
    time_scale: float = Field(1.0, ge=0, le=1000)
    overrides: dict[str, float] = Field({})
    num_blocks: int | None = Field(None, ge=2, le=10_000_000)
    kv_gib: float = Field(24.0, gt=0, le=100_000)
    link_latency: float = Field(20e-6, ge=0, le=1)
    async_scheduling: bool | None = None
    clock: Literal["Wall", "Virtual"] = "Wall"
    seed: int = 0
    vocabulary: Literal["Words", "All"] = "Words"
    answer_tokens: int | None = Field(None, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.device()
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return self

    def device(self) -> Device:
        """ConfigurationError names a wrong preset or override."""
        refuse_given(f"virtualGpu {self.preset}", self.overrides, ("preset", "time_scale"))
        return replace(make_device(self.preset, **self.overrides), time_scale=self.time_scale)

    def blocks(self, block_size: int, given: int | None = None) -> int:
        """KV blocks in total, at least two. given: vLLM's command-line option; `num_blocks` wins over it."""
        if self.num_blocks is not None or given is not None:
            return self.num_blocks or given or 2
        return max(2, int(self.kv_gib * _GIB) // self.block_bytes(block_size))

    def block_bytes(self, block_size: int) -> int:
        """The size of one KV block of the modelled device, and of a copy of it."""
        return block_size * self.device().kv_bytes_per_token


def read_config(additional_config: object) -> VirtualGpuConfig:
    """The section of vLLM's `--additional-config`, or the defaults without one. ConfigurationError names every mistake.

    additional_config: a mapping from JSON, or any object that a plugin of vLLM put there.
    """
    given = additional_config.get(SECTION, {}) if isinstance(additional_config, Mapping) else {}
    try:
        return VirtualGpuConfig.model_validate(given)
    except ValidationError as error:
        lines = [f"  - {'.'.join(map(str, (SECTION, *item['loc'])))}: {item['msg']}" for item in error.errors()]
        known = ", ".join(field.alias or name for name, field in VirtualGpuConfig.model_fields.items())
        raise ConfigurationError("\n".join(["--additional-config:", *lines, f"  there are: {known}"])) from error
