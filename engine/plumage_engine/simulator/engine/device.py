"""What one engine step costs on a modelled device, and the two presets: `gpu` and `cpu`.

A model of a device is not evidence for FEATHER's gain on a real one. These models exist so that queues, routers and
caches can be compared under a stated cost; nothing measured on them is reported as FEATHER's.

The model. A step runs `decodes` requests by one token each and `prefill_tokens` tokens of prompts:

    seconds = max(compute, pcie_bytes / pcie)
    compute = fixed + max(weights, rows · row) + prefill_pairs · pair + distinct · first_read + re-reads

`rows` = decodes + prefill tokens. The decodes read `context` KV tokens in all, `distinct` of them different ones. The
first read of a token in a step comes from memory; a re-read (context − distinct of them) finds some of it in the
processor's caches. How much of it is what the two presets differ in. KV copies over PCIe run layer by layer beside the
compute (HotPrefix §3.4), so the longer of the two counts.

`gpu`: Llama 3 8B in bf16 on an NVIDIA L40 (KVRouting's machine; FEATHER's RTX 6000 Ada is the same AD102 chip with the
same 96 MB of L2 cache). From the data sheets: 864 GB/s, 181 dense bf16 TFLOP/s, PCIe 4.0 × 16. Assumed, before any
policy ran: 85 % of the memory bandwidth, 60 % of the TFLOP/s, 25 GB/s over PCIe, 3 ms a step for launches and
scheduling. Then, with 8.03e9 parameters, 32 layers, hidden size 4096, 8 KV heads of 128:
  - weights 16.06 GB / 734 GB/s = 21.9 ms; a row 2 · 8.03e9 / 108.6e12 = 0.148 ms: prefill at most 6,760 tokens/s;
  - a query-key pair 4 · 4096 · 32 FLOP = 4.83 ns: an 8,192-token prompt pays 13 % on top;
  - a KV token is 131,072 B (FEATHER §3.1: 1.2 GB for 10k tokens) = 0.178 µs from memory.
  KVRouting's default GSP (12 req/s on 4 workers, 3,174 prompt tokens on average) offers 9,500 tokens/s a worker. That
  is 1.5 times what it can prefill with a cold cache: overloaded at a quarter of hits, just below saturation at 0.4.
  Re-reads are fitted to two sentences of FEATHER §3.2. Tokens shared by *all* decodes: 2.8 times faster than memory
  (Exp. 2: 100 × 2k tokens, sharing everything gives "over 60 %" on sharing nothing). All others: 1.35 times, however
  many groups there are (Exp. 1: one stranger among 500 × 10k costs "nearly 2×"; Exp. 3: flat from 2 to 20 groups).
  Takeaways 1–8 follow and are tested; "very many groups evict" (Takeaway 3) comes from the block pool, not from here.

`cpu`: 8 layers of hidden size 512, 8 KV heads, bf16, one thread, as measured with vLLM's CPU backend, batch 16, warm
prefixes; decode tokens/s by number of prefix groups, requests of the groups interleaved (sorted by group in brackets):

    groups    1     2          4          8          16
    2k        1039  859 (916)  655 (756)  441 (520)  335
    4k         624  495 (518)  359 (399)  229 (284)  183

  Least squares by hand: 1.26 µs for a first read (16 KiB a token: 13 GB/s), 0.25 µs for a re-read next to its first.
  Where groups interleave, it is between them by x^1.2, x = share of the reads that are another request's own. No
  context explains 5.2 ms a step at batch 16. Only that sum is measured: the split into 2 ms + 0.2 ms a row is assumed,
  and so is the pair at 100 GFLOP/s. Every cell of the table is within 6 % and is tested.

The presets do not change any more. Another device is an override of a preset, stated where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from plumage.errors import ConfigurationError

__all__ = [
    "CPU",
    "GPU",
    "PRESETS",
    "QUADRATIC_ATTENTION",
    "CpuDevice",
    "Device",
    "GpuDevice",
    "StepShape",
    "device_options",
    "make_device",
]


@dataclass(slots=True)
class StepShape:
    """One step as the device sees it. `shared`: tokens of the prefix common to all decodes. `prefill_pairs`: query-key
    pairs of the prefill chunks. `ordered`: the batch is sorted by prefix: requests of a group are neighbours."""

    decodes: int = 0
    context: int = 0
    distinct: int = 0
    shared: int = 0
    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    pcie_bytes: float = 0.0
    ordered: bool = False


@dataclass(frozen=True)
class Device:
    """A cost model; see the module. Times are seconds, `pcie` is bytes a second, `time_scale` stretches every step
    (2.0 = a device half as fast)."""

    fixed: float
    weights: float
    row: float
    pair: float
    first_read: float
    kv_bytes_per_token: int
    pcie: float
    time_scale: float = 1.0

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step."""
        rows = shape.decodes + shape.prefill_tokens
        distinct = min(shape.distinct, shape.context)
        compute = self.fixed + max(self.weights, rows * self.row) + shape.prefill_pairs * self.pair
        compute += distinct * self.first_read
        if shape.context > distinct:
            compute += self.rereads(shape, distinct)
        return max(compute, shape.pcie_bytes / self.pcie) * self.time_scale

    def copying(self, size: float) -> float:
        """Seconds to copy `size` bytes over the link to host memory."""
        return size / self.pcie * self.time_scale

    def rereads(self, shape: StepShape, distinct: int) -> float:
        """Seconds of the reads after the first of each token."""
        return (shape.context - distinct) * self.first_read


@dataclass(frozen=True)
class GpuDevice(Device):
    """A cliff: re-reads of what *all* share cost `reread_all` a token, any other `reread_some` (Takeaways 1, 3, 4)."""

    reread_all: float = 0.0
    reread_some: float = 0.0

    def rereads(self, shape: StepShape, distinct: int) -> float:
        total = shape.context - distinct
        by_all = min(total, shape.shared * (shape.decodes - 1))
        return by_all * self.reread_all + (total - by_all) * self.reread_some


@dataclass(frozen=True)
class CpuDevice(Device):
    """A slope: a re-read costs from `reread` up to a first read, the more other requests' tokens lie in between."""

    reread: float = 0.0
    exponent: float = 1.0

    def rereads(self, shape: StepShape, distinct: int) -> float:
        cost = self.reread
        if not shape.ordered and shape.decodes > 1:
            own = shape.context / shape.decodes
            foreign = max(0.0, (distinct - own) / (shape.context - own))
            cost += (self.first_read - self.reread) * foreign**self.exponent
        return (shape.context - distinct) * cost


_BANDWIDTH: Final = 864e9 * 0.85
_FLOPS: Final = 181e12 * 0.60
_PARAMETERS: Final = 8.03e9
_KV_BYTES: Final = 2 * 32 * 8 * 128 * 2  # keys and values, layers, KV heads, head size, bf16

GPU: Final = GpuDevice(
    fixed=0.003,
    weights=2 * _PARAMETERS / _BANDWIDTH,
    row=2 * _PARAMETERS / _FLOPS,
    pair=4 * 4096 * 32 / _FLOPS,
    first_read=_KV_BYTES / _BANDWIDTH,
    kv_bytes_per_token=_KV_BYTES,
    pcie=25e9,
    reread_all=_KV_BYTES / _BANDWIDTH / 2.8,
    reread_some=_KV_BYTES / _BANDWIDTH / 1.35,
)

CPU: Final = CpuDevice(
    fixed=0.002,
    weights=0.0,
    row=0.0002,
    pair=4 * 512 * 8 / 100e9,
    first_read=1.26e-6,
    kv_bytes_per_token=2 * 8 * 512 * 2,
    pcie=10e9,  # a copy in memory; there is no link
    reread=0.25e-6,
    exponent=1.2,
)

PRESETS: Final[Mapping[str, Device]] = {"gpu": GPU, "cpu": CPU}

# The factor on the cost of attention at which an 8,192-token prompt spends as long in it as in the linear layers. Hits
# then save less than their share of the tokens, which a latency linear in hit and miss tokens can't express.
QUADRATIC_ATTENTION: Final = GPU.row / (GPU.pair * 8192 / 2)


def device_options(preset: str) -> list[str]:
    """The names of `make_device`'s overrides; none for an unknown preset."""
    device = PRESETS.get(preset)
    return [] if device is None else ["attention", *(field.name for field in fields(device))]


def make_device(preset: str, *, time_scale: float = 1.0, attention: float = 1.0, **overrides: float) -> Device:
    """A preset with overrides. `attention` multiplies the cost of a query-key pair.

    ConfigurationError names an unknown preset or field, or a value that is no cost.
    """
    device = PRESETS.get(preset)
    if device is None:
        raise ConfigurationError(f"device.preset: unknown {preset!r}; choose one of {', '.join(PRESETS)}")
    known = {field.name for field in fields(device)}
    for name, value in {"time_scale": time_scale, "attention": attention, **overrides}.items():
        if name not in known | {"attention"}:
            raise ConfigurationError(f"device.{name}: unknown; {preset!r} has {', '.join(sorted(known))}")
        if value < 0 or (value == 0 and name in ("time_scale", "attention", "pcie", "kv_bytes_per_token")):
            raise ConfigurationError(f"device.{name}: must be positive, got {value!r}")
    pair = overrides.pop("pair", device.pair) * attention
    return replace(device, time_scale=time_scale, pair=pair, **overrides)  # type: ignore[arg-type]
