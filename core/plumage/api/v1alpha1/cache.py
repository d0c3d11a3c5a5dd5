"""`spec.engine.eviction` and `spec.engine.hostMemory`: which KV blocks stay, and where (RLT, HotPrefix)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from plumage.api.v1alpha1.fields import WORDS, Memory, Path
from plumage.api.v1alpha1.struct import Struct

__all__ = ["DiskSpec", "EvictionSpec", "HostMemorySpec", "HotnessFilterSpec", "HotnessSpec"]

OPERAND = r"(frequency|clock|length|depth|[0-9]{1,9}(\.[0-9]{1,6})?)"
PRIORITY = rf"^{OPERAND}( [-+*/] {OPERAND}){{0,7}}$"
WORDS[PRIORITY] = "terms (frequency, clock, length, depth, numbers) with + - * / between them, one space around each"
Bits = Annotated[int, Field(ge=4, le=32)]


class HotnessFilterSpec(Struct):
    """Widths of the hotness-aware cuckoo filter's fields (HotPrefix §3.2); the paper's are all 8 bits."""

    fingerprint_bits: Bits = Field(8, description="8 bits give about 3 % false positives, 16 about 0.01 %.")
    clock_bits: Bits = Field(8, description="Width of the clock that counts down while a prefix is not used.")
    frequency_bits: Bits = Field(8, description="Width of the access count; all counts are halved on saturation.")
    depth_bits: Bits = Field(8, description="Width of the depth in the prefix tree.")


class HotnessSpec(Struct):
    """Hotness eviction: what was used often stays, also when it was not used lately (HotPrefix §3.3)."""

    form: Literal["Adaptive", "Paper"] = Field(
        "Adaptive",
        description="Adaptive finds its own balance of frequency and recency; Paper is HotPrefix's formula.",
    )
    priority: Annotated[str, Field(min_length=1, max_length=256, pattern=PRIORITY)] = Field(
        "frequency + clock / length", description="Formula of a prefix's priority, lowest evicted first; for Paper."
    )
    aging_interval: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        100, description="Requests after which every clock goes down by one; for Paper."
    )
    filter: HotnessFilterSpec = Field(
        HotnessFilterSpec(), description="Widths of the filter that counts accesses; for Paper."
    )


class EvictionSpec(Struct):
    """Which cached block goes when a new one needs room."""

    policy: Literal["Hotness", "Rlt", "Lru"] = Field(
        "Hotness", description="Hotness (HotPrefix), Rlt (randomized leaf tokens: robust to bad orders), or plain Lru."
    )
    hotness: HotnessSpec = Field(HotnessSpec(), description="Settings of the Hotness policy.")


class DiskSpec(Struct):
    """A tier below host memory."""

    capacity: Memory = Field(description="Room for KV blocks on disk.")
    path: Path = Field("/var/cache/plumage", description="Where the volume is mounted in the engine's container.")


class HostMemorySpec(Struct):
    """Host memory as a second tier for KV blocks: selective admission and promotion (HotPrefix §3.4, §3.5)."""

    capacity: Memory | None = Field(None, description="Host memory for KV blocks; the GPU's KV capacity when absent.")
    min_frequency: Annotated[int, Field(ge=1, le=4_294_967_295)] = Field(
        10, description="Accesses below which an evicted prefix is dropped rather than copied."
    )
    admission: Literal["Hotness", "Frequency", "All"] = Field(
        "Hotness", description="Copy what is hotter than the coldest resident, what passes minFrequency, or everything."
    )
    promotion: Literal["Hotness", "Recency", "Frequency", "Depth", "Off"] = Field(
        "Hotness", description="What brings a prefix back to the GPU ahead of its next request."
    )
    disk: DiskSpec | None = Field(None, description="A tier below host memory; none when absent.")
