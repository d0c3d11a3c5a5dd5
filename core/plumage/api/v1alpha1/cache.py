"""`spec.engine.eviction` and `spec.engine.hostMemory`: which KV blocks stay in which tier (RLT, HotPrefix)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from plumage import defaults
from plumage.api.v1alpha1.cel import literal
from plumage.api.v1alpha1.field_types import WORDS, Memory, Path, Subdomain
from plumage.api.v1alpha1.struct import Rule, Struct

__all__ = ["DiskSpec", "EvictionSpec", "HostFilterSpec", "HostMemorySpec", "HotnessFilterSpec", "HotnessSpec"]

OPERAND = r"(frequency|clock|length|depth|[0-9]{1,9}(\.[0-9]{1,6})?)"
PRIORITY = rf"^{OPERAND}( [-+*/] {OPERAND}){{0,7}}$"
WORDS[PRIORITY] = "terms (frequency, clock, length, depth, numbers) with + - * / between them, one space around each"
Priority = Annotated[str, Field(min_length=1, max_length=120, pattern=PRIORITY)]
Bits = Annotated[int, Field(ge=4, le=32)]
AgingInterval = Annotated[int, Field(ge=1, le=1_000_000)]


class HotnessFilterSpec(Struct):
    """Widths of the hotness-aware cuckoo filter's fields (HotPrefix §3.2); the paper has 8 bits for each."""

    fingerprint_bits: Bits = Field(
        defaults.FILTER_BITS, description="8 bits give about 3 % false positives, 16 about 0.01 %."
    )
    clock_bits: Bits = Field(
        defaults.FILTER_BITS, description="Width of the clock that counts down while a prefix is not used."
    )
    frequency_bits: Bits = Field(
        defaults.FREQUENCY_BITS, description="Width of the access count, which stays at its maximum."
    )
    depth_bits: Bits = Field(defaults.FILTER_BITS, description="Width of the depth in the prefix tree.")


_EIGHT_BITS = HotnessFilterSpec(frequencyBits=8)  # the default before frequencyBits was 16


def _for_paper(at: str, name: str, what: str, *defaults: int | str | HotnessFilterSpec) -> Rule:
    """The rule of a setting that only form Paper has. An API server stores defaults in the object, and old objects keep
    them: `defaults` are the current one and the earlier ones."""
    same = " || ".join(f"({_equal(f'self.{at}', default)})" for default in defaults)
    return Rule(
        at=at,
        must=f"may not be changed with form Adaptive, which has no {what}",
        cel=f"self.form == 'Paper' || {same}",
        reads=("form", name),
        holds=lambda spec: spec.form == "Paper" or getattr(spec, name) in defaults,
    )


def _equal(place: str, default: int | str | HotnessFilterSpec) -> str:
    values = default.model_dump(mode="json") if isinstance(default, HotnessFilterSpec) else {"": default}
    return " && ".join(f"{place}{f'.{part}' if part else ''} == {literal(value)}" for part, value in values.items())


class HotnessSpec(Struct):
    """Hotness eviction: blocks that were used often stay longer than with LRU (HotPrefix §3.3)."""

    form: Literal["Adaptive", "Paper"] = Field(
        "Adaptive",
        description="Adaptive learns the balance of frequency and recency. Paper is HotPrefix's formula.",
    )
    priority: Priority = Field(
        defaults.PAPER_PRIORITY,
        description="Formula of a prefix's priority; the lowest is evicted first. Only for form Paper.",
    )
    aging_interval: AgingInterval = Field(
        defaults.AGING_INTERVAL,
        description="Requests after which every clock decreases by one. Only for form Paper.",
    )
    filter: HotnessFilterSpec = Field(
        HotnessFilterSpec(),
        description="Widths of the filter that counts accesses. Only for form Paper. The host tier has its own, "
        "hostMemory.filter.",
    )
    rules: ClassVar = (
        _for_paper("priority", "priority", "formula", defaults.PAPER_PRIORITY),
        _for_paper("agingInterval", "aging_interval", "clocks", defaults.AGING_INTERVAL),
        _for_paper("filter", "filter", "filter", HotnessFilterSpec(), _EIGHT_BITS),
    )


class EvictionSpec(Struct):
    """Which cached block is evicted when a new one needs room."""

    policy: Literal["Hotness", "Rlt", "Lru"] = Field(
        defaults.EVICTION_POLICY,
        description="Hotness (HotPrefix), Rlt (randomized leaf tokens, for orders that are bad for LRU), or Lru.",
    )
    hotness: HotnessSpec = Field(HotnessSpec(), description="Settings of the Hotness policy.")


class DiskSpec(Struct):
    """A tier below host memory."""

    capacity: Memory = Field(description="Room for KV blocks on disk, of one replica.")
    claim_name: Subdomain | None = Field(
        None,
        description="A PersistentVolumeClaim with ReadWriteMany; each replica writes its own file. When absent, an "
        "emptyDir of that capacity.",
    )
    path: Path = Field(
        "/var/cache/plumage",
        description="Path of the volume in the engine's container. In local mode, a folder.",
    )


class HostFilterSpec(HotnessFilterSpec):
    """Widths of the host tier's hotness filter. It has its own, because not all eviction policies have one."""

    fingerprint_bits: Bits = Field(
        defaults.HOST_FINGERPRINT_BITS, description="8 bits give about 3 % false positives, 16 about 0.01 %."
    )


class HostMemorySpec(Struct):
    """Host memory as a second tier for KV blocks: selective admission and promotion (HotPrefix §3.4, §3.5)."""

    capacity: Memory | None = Field(
        None,
        description="Host memory for KV blocks. Required for VLLM; a Simulator has simulator.hostBlocks instead.",
    )
    min_frequency: Annotated[int, Field(ge=1, le=4_294_967_295)] | None = Field(
        None,
        description="Accesses that a prefix needs to be copied to host memory. When absent, 1 while requests load "
        "enough of the prefixes that were copied after one access, else 2.",
    )
    admission: Literal["Hotness", "Frequency", "All"] = Field(
        defaults.ADMISSION,
        description="Which prefixes are copied: those hotter than the coldest in host memory (Hotness), those used "
        "minFrequency times (Frequency), or all (All).",
    )
    promotion: Literal["Hotness", "Recency", "Frequency", "Depth", "Off"] = Field(
        defaults.PROMOTION,
        description="Ranking of the prefixes that are copied back to the GPU before their next request.",
    )
    priority: Priority = Field(
        defaults.HOST_PRIORITY,
        description="Formula of a prefix's hotness; the highest is hottest. Admission by Frequency does not use it, "
        "nor do other promotions than Hotness.",
    )
    aging_interval: AgingInterval | None = Field(
        None,
        description="Requests after which every clock decreases by one. When absent, a clock lasts as long as it takes "
        "to use as many blocks as fill both memories twice.",
    )
    filter: HostFilterSpec = Field(HostFilterSpec(), description="Widths of the filter that counts accesses.")
    disk: DiskSpec | None = Field(
        None, description="A tier below host memory; it needs a capacity. None when absent. Not simulated."
    )
    rules: ClassVar = (
        Rule(
            at="minFrequency",
            must="must be at most the largest count of filter.frequencyBits",
            cel=f"!has(self.minFrequency) || self.minFrequency < {[1 << bits for bits in range(4, 33)]}"
            "[self.filter.frequencyBits - 4]",
            reads=("min_frequency", "filter"),
            holds=lambda spec: spec.min_frequency is None or spec.min_frequency < 1 << spec.filter.frequency_bits,
        ),
    )
