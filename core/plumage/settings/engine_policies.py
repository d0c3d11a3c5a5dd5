"""The settings of an engine's policies, the same for the simulator's file and vLLM's plugin."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from plumage import defaults
from plumage.batching import queue_options
from plumage.errors import ConfigurationError
from plumage.eviction import policy_options
from plumage.import_path import is_import_path
from plumage.version_skew import Settings, refuse_newer

__all__ = ["EvictionConfig", "FeatherConfig", "HostTierConfig", "RecordConfig", "refuse_code"]


class EvictionConfig(Settings):
    """A policy of `plumage.eviction`, with that policy's own options."""

    policy: str = defaults.EVICTION_POLICY
    options: dict[str, Any] = Field({})

    @field_validator("options")
    @classmethod
    def _known(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        refuse_newer(value, policy_options(info.data.get("policy", "")), info)
        return value


class FeatherConfig(Settings):
    """A queue of `plumage.batching`, with that policy's own options. chunk_tokens: a level of its hash vectors.
    order_batch: sort the running batch by prefix."""

    policy: str = defaults.FEATHER_POLICY
    chunk_tokens: int = Field(defaults.CHUNK_TOKENS, ge=1, le=4096)
    max_wait_seconds: float = Field(defaults.MAX_WAIT_SECONDS, gt=0)
    order_batch: bool = defaults.ORDER_BATCH
    options: dict[str, Any] = Field({})

    @field_validator("options")
    @classmethod
    def _known(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        refuse_newer(value, queue_options(info.data.get("policy", "")), info)
        return value


def refuse_code(feather: object) -> None:
    """ConfigurationError for a `feather` in a request, as parsed, whose policy names code to import. The settings at an
    engine's start may name a class of your own; requests may not."""
    policy = feather.get("policy") if isinstance(feather, dict) else None
    if isinstance(policy, str) and is_import_path(policy):
        raise ConfigurationError(f"policy: a request can't name code to import, got {policy!r}")


class RecordConfig(Settings):
    """The cuckoo filter that counts uses of prefixes (`plumage.hotness.cuckoo`): widths in bits, requests an ageing;
    None: a clock lasts while the blocks used would fill both memories twice."""

    fingerprint_bits: int = Field(defaults.HOST_FINGERPRINT_BITS, ge=4, le=32)
    clock_bits: int = Field(defaults.FILTER_BITS, ge=4, le=32)
    frequency_bits: int = Field(defaults.FREQUENCY_BITS, ge=4, le=32)
    depth_bits: int = Field(defaults.FILTER_BITS, ge=4, le=32)
    aging_interval: int | None = Field(None, ge=1)


class HostTierConfig(Settings):
    """Which evicted blocks are copied to host memory, and which are promoted from it (`plumage.tiering`).

    min_frequency: uses for a copy; None: as many as pay (`plumage.tiering.LeastUses`).
    promotion_tokens: the most that one plan promotes.

    For vLLM only:

    promotion_bytes: the most that are copied to each device at once, whichever steps their copies began in.
    promotion_lookahead: the waiting requests whose blocks are promoted before their turn, 0 for none.

    A link of 25 GB/s, PCIe 4.0 ×16, moves the default of promotion_bytes in 11 ms. That is about a step that decodes,
    or a quarter of the link for four. A request's own load waits no longer than that behind promotions.
    """

    min_frequency: int | None = Field(None, ge=1)
    admission: Literal["Hotness", "Frequency", "All"] = defaults.ADMISSION
    promotion: Literal["Hotness", "Recency", "Frequency", "Depth", "Off"] = defaults.PROMOTION
    promotion_tokens: int = Field(4096, ge=1)
    promotion_bytes: int = Field(256 * 2**20, ge=1)
    promotion_lookahead: int = Field(16, ge=0, le=256)
    priority: str = defaults.HOST_PRIORITY
    record: RecordConfig = RecordConfig()
