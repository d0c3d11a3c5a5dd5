"""`vllm-hotprefix`: throughput and time to first token of eviction and host memory, in real vLLM on a real device.

HotPrefix (§5) compares its parts with vLLM's LRU by the time that users see. Here one engine for each contender serves
the same few-shot questions (`workloads.fewshot`). The KV cache has room for a share of the prefixes, and host memory
has room for all. Twice as many requests are in the system as run at a time. Questions come in rounds with the same
prefixes; the first round fills the caches and is not counted. A pair is the same round of two contenders, which are
minutes apart: `LRU again` shows the drift.

`LRU` is vLLM without changes. `offloading` is vLLM with its own offloading to host memory, which stores every block;
`offloading, 2` stores a block at its second use (`store_threshold`). `E` is eviction by hotness (HotPrefix §3.3). `A+P`
is HotPrefix's host tier with LRU on the device: selective admission (§3.3.2), and promotion of the hottest (§3.4).
`product` is what a manifest with `hostMemory` deploys: its order of requests, eviction, host tier, and its lookahead,
which promotes what waiting requests need next. `A+lookahead` has that lookahead, and LRU on the device. `LRU again` is
the noise.

On a CPU the model has 8 layers; on a GPU it has the shape of Llama 3 8B. Rates are those of the device's time: CPU time
of the process, or wall-clock time on a GPU. Times to first token are of the wall's clock. vLLM's own offloading needs a
GPU.

`modelled=1` runs vLLM's scheduler, block pool and offloading over the virtual GPU in virtual time: Llama 3 8B on one
L40 and Llama 3 70B on eight, with three links to host memory. Then the time that scheduler and plugin take is left out.

`disk=1` compares disks below host memory in the same way, on the middle link. Host memory has room for half of the
prefixes (`half`), and a disk for all. The disks differ in rate: SATA, and flash behind PCIe 3, 4 and 5. Each is written
at half the rate of reading. `all` has no disk, and host memory for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from plumage.settings.vllm import host_tier_config
from plumage_bench.benches.vllm_hostmem import tokens_of
from plumage_bench.device import CPU, work_clock
from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys
from plumage_bench.ours import Ours
from plumage_bench.pairs import LEAST_PAIRS, PairedRatio, paired_ratio
from plumage_bench.quantiles import quantile
from plumage_bench.virtual_gpu.disk import VirtualDisk
from plumage_bench.vllm.engine import GPU_ARGUMENTS, Engine, plugin_arguments, prepare_environment, running
from plumage_bench.vllm.shapes import Shape, shape, write_shape
from plumage_bench.vllm.timed import Ask, Outcome, TimedEngine
from plumage_bench.workloads import FEWSHOT_SUITES, Prompt, fewshot_prompts
from plumage_engine.simulator.engine.device import GPU

__all__ = ["CONTENDERS", "DISK_CONTENDERS", "PRODUCT", "Contender", "Load", "Played", "play", "run"]

BATCH = 8
_BLOCK = {CPU: 32, "cuda": 16}
"""Tokens of a block: vLLM's smallest on the device."""
_MIB = 1 << 20
_HOTNESS = {"engine.eviction.policy": "Hotness"}
_LINKS = {"12 GB/s": 12e9, "25 GB/s": 25e9, "50 GB/s": 50e9}
"""Of each GPU to host memory: PCIe 3, 4 and 5, with 16 lanes."""
_CHIPS = {"llama-3-8b": 1, "llama-3-70b": 8}
_TINY_BYTES = 512
"""Bytes of a token's keys and values in the model that vLLM reads for the virtual GPU (`tiny_model`)."""
_ONLY_TIER = {"engine.feather.policy": "Fcfs", "engine.batchLimit": "Static", "engine.eviction.policy": "Lru"}


@dataclass(frozen=True, slots=True)
class Contender:
    """overrides: of the manifest; None: vLLM without the plugin. host: whether there is host memory. lab: changes of
    the plugin's `hostTier`, by its JSON names, that no manifest has. options: of vLLM's own offloading. room: the share
    of all prefixes that host memory has room for. disk: bytes that a disk below it reads a second; 0: no disk."""

    label: str
    overrides: Mapping[str, Any] | None = None
    host: bool = False
    lab: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    room: float = 1.0
    disk: float = 0.0

    def ours(self, host_bytes: int) -> Ours:
        """Its manifest. host_bytes: of host memory that has room for all prefixes."""
        fields = dict(self.overrides or {})
        if self.host:
            fields["engine.hostMemory.capacity"] = _mebibytes(host_bytes * self.room)
        if self.disk:
            fields["engine.hostMemory.disk.capacity"] = _mebibytes(host_bytes)
        return Ours(fields, "VLLM")

    def arguments(self, host_bytes: int, disk_folder: Path | None = None) -> dict[str, Any]:
        """EngineArgs. disk_folder: of the disk's file, instead of the pod's."""
        from vllm.config import KVTransferConfig

        made: dict[str, Any] = {}
        extra: dict[str, Any] = {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": host_bytes, **self.options}
        tier: dict[str, Any] | None = {
            "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra
        }  # fmt: skip
        if self.overrides is not None:
            ours = self.ours(host_bytes)
            settings = ours.plugin()
            if self.lab:
                settings["hostTier"] = {**settings["hostTier"], **self.lab}
            made |= plugin_arguments(settings)
            tier = host_tier_config(ours.pool())
        if self.disk and tier is not None and disk_folder is not None:
            tier["kv_connector_extra_config"]["disk_path"] = str(disk_folder)
        if self.host and tier is not None:
            made["kv_transfer_config"] = KVTransferConfig(**tier)
        return made


LRU = Contender("LRU")
PRODUCT = Contender("product", {}, host=True)
_ALL = (
    LRU,
    Contender("offloading", host=True),
    Contender("offloading, 2", host=True, options={"store_threshold": 2}),
    Contender("offloading, ARC", host=True, options={"eviction_policy": "arc"}),
    Contender("E", _ONLY_TIER | _HOTNESS),
    Contender("A+P", _ONLY_TIER, host=True, lab={"promotionLookahead": 0}),
    Contender("A+lookahead", _ONLY_TIER, host=True),
    Contender("E+A+P", _ONLY_TIER | _HOTNESS, host=True, lab={"promotionLookahead": 0}),
    PRODUCT,
    replace(LRU, label="LRU again"),
)
CONTENDERS: Mapping[str, Contender] = {one.label: one for one in _ALL}
_DISKS = {"SATA": 0.5e9, "PCIe 3": 3.5e9, "PCIe 4": 7e9, "PCIe 5": 14e9}
"""Bytes that a disk reads a second: flash behind SATA, or behind 4 lanes of PCIe."""
_HALF = replace(PRODUCT, label="half", room=0.5)
DISK_CONTENDERS = (
    LRU,
    _HALF,
    *(replace(_HALF, label=f"half, {name}", disk=rate) for name, rate in _DISKS.items()),
    replace(PRODUCT, label="all"),
)


@dataclass(frozen=True, slots=True)
class Load:
    """rounds: of questions, the first of which is not counted. device, host: tokens that fit into the KV cache and into
    host memory."""

    rounds: Sequence[Sequence[Prompt]]
    device: int
    host: int

    @classmethod
    def made(cls, suite: str, seed: int, rounds: int, questions: int, zipf: float, share: float) -> Load:
        """share: of the prefixes that the KV cache has room for, beside the questions and answers of a batch."""
        kind = replace(FEWSHOT_SUITES[suite], questions=questions * (rounds + 1), zipf=zipf)
        prompts = fewshot_prompts(kind, seed)
        prefixes = int(kind.subjects * kind.example_tokens)
        own = int(BATCH * (kind.question_tokens + kind.output_tokens) * 2)
        parts = [prompts[at : at + questions] for at in range(0, len(prompts), questions)]
        return cls(parts, int(prefixes * share) + own, prefixes * 5 // 4)


@dataclass(frozen=True, slots=True)
class Played:
    """One round. seconds: of the device. waits: to each first token, in seconds. prompt, cached: tokens."""

    seconds: float
    waits: tuple[float, ...]
    prompt: int
    cached: int

    @property
    def rate(self) -> float:
        """Requests a second of the device's time."""
        return len(self.waits) / self.seconds


def play(engine: Engine, prompts: Sequence[Prompt], first: int, clock: Callable[[], float]) -> Played:
    """Serve one round. first: number of its first question, for names and question texts of its own."""
    from vllm import SamplingParams

    came: dict[str, float] = {}
    waits: dict[str, float] = {}
    cached, number, began = 0, 0, clock()
    while number < len(prompts) or engine.llm.has_unfinished_requests():
        while number < len(prompts) and engine.llm.get_num_unfinished_requests() < 2 * BATCH:
            prompt, name = prompts[number], str(first + number)
            wanted = SamplingParams(max_tokens=prompt.output_tokens, temperature=0, ignore_eos=True, detokenize=False)
            came[name] = time.perf_counter()
            engine.llm.add_request(name, {"prompt_token_ids": tokens_of(prompt, first + number)}, wanted)
            number += 1
        for output in engine.llm.step():
            if output.request_id not in waits:
                waits[output.request_id] = time.perf_counter() - came[output.request_id]
                cached += output.num_cached_tokens or 0
    return Played(clock() - began, tuple(waits.values()), sum(prompt.tokens for prompt in prompts), cached)


def run(context: Context) -> Report:
    """One engine after another serves all rounds."""
    prepare_environment()
    quick, modelled = context.quick, context.switch("modelled")
    suite = context.some("suite", tuple(FEWSHOT_SUITES), ("mmlu",) if quick else ("ceval",))[0]
    disk = context.switch("disk")
    chosen = [CONTENDERS[one] for one in context.some("contenders", tuple(CONTENDERS), _usual(context, modelled))]
    rounds = context.count("pairs", 2 if quick else LEAST_PAIRS)
    questions = context.count("questions", 64 if quick else 192, 10_000)
    zipf = float(context.some("zipf", ("0", "0.5", "1"), ("0",))[0])
    room = int(context.some("room", ("25", "50", "80"), ("25",))[0]) / 100
    load = Load.made(suite, context.seed, rounds, questions, zipf, room)
    if LRU not in chosen:
        chosen.insert(0, LRU)
    with TemporaryDirectory() as folder:
        if disk:
            return _report(_modelled(Path(folder), DISK_CONTENDERS, load, context, ("25 GB/s",)), load)
        if modelled:
            return _report(_modelled(Path(folder), chosen, load, context, tuple(_LINKS)), load)
        model = shape(context.options.get("model", "m8" if context.device == CPU else "llama-3-8b"))
        return _report({model.name: _real(Path(folder), model, chosen, load, context)}, load)


def _real(
    folder: Path, model: Shape, chosen: Sequence[Contender], load: Load, context: Context
) -> dict[str, list[Played]]:
    """Rounds by contender, on the real device. An interrupted run returns those that have ended."""
    played: dict[str, list[Played]] = {}
    own = write_shape(folder, model)
    with context.progress(context.name, len(chosen) * len(load.rounds)) as done:
        for contender in chosen:
            try:
                played[contender.label] = _rounds(folder, model, own, contender, load, context, done)
            except KeyboardInterrupt:
                if not played:
                    raise
                context.console.print(f"[yellow]Interrupted in {contender.label}: the report has those before it.[/]")
                break
            context.console.print(f"{contender.label} ÷ LRU: {_rate(played, contender.label)}", highlight=False)
    return played


def _modelled(
    folder: Path, chosen: Sequence[Contender], load: Load, context: Context, links: Sequence[str]
) -> dict[str, dict[str, list[Played]]]:
    """Rounds by contender, for each model and link, in virtual time."""
    from plumage_engine.vllm.tiny_model import write_model

    write_model(folder, size="tiny")
    cells = [(shape(model), link) for model in _CHIPS for link in links]
    found: dict[str, dict[str, list[Played]]] = {}
    with context.progress(context.name, len(cells) * len(chosen)) as done:
        for model, link in cells:
            played = found[f"{model.name}, {link}"] = {}
            for contender in chosen:
                played[contender.label] = _virtual_rounds(folder, model, link, contender, load)
                done(1)
    return found


def _virtual_rounds(folder: Path, model: Shape, link: str, contender: Contender, load: Load) -> list[Played]:
    """One engine over a virtual GPU serves all rounds."""
    block = _BLOCK["cuda"]
    arguments = contender.arguments(load.host * _TINY_BYTES, folder / "disk")
    settings = arguments.pop("additional_config", {}).get("plumage", {})
    arguments.pop("scheduler_cls", None)
    gpu = {"overrides": _costs(model, _LINKS[link] * _CHIPS[model.name]), "numBlocks": load.device // block + 1}
    engine = TimedEngine(
        folder, {**settings, "virtualGpu": gpu}, block_size=block, max_num_seqs=BATCH, max_num_batched_tokens=8192,
        max_model_len=8192, **arguments,
    )  # fmt: skip
    try:
        if engine.failed:
            raise RuntimeError(f"{contender.label}: {engine.failed}")
        if contender.disk:
            _model_disk(engine, model, contender.disk)
        results, first = list[Played](), 0
        for prompts in load.rounds:
            results.append(_play_virtual(engine, prompts, first))
            first += len(prompts)
        return results[1:]
    finally:
        engine.close()


def _model_disk(engine: TimedEngine, model: Shape, rate: float) -> None:
    """Replaces the threads of the engine's disk by a disk in virtual time, one for all chips."""
    transfers = engine.scheduler.connector.connector_scheduler.manager.disk._io
    chunk = transfers._file.size / _TINY_BYTES * model.kv_bytes
    transfers._pool.shutdown(wait=True)
    transfers._pool = VirtualDisk(engine.clock, reading=rate, writing=rate / 2, chunk=chunk)


def _mebibytes(size: float) -> str:
    return f"{-(-int(size) // _MIB)}Mi"


def _costs(model: Shape, link: float) -> dict[str, float]:
    """Overrides of the `gpu` device for this model on its chips. link: bytes a second of all chips."""
    chips = _CHIPS[model.name]
    bandwidth, flops = chips * GPU.kv_bytes_per_token / GPU.first_read, chips * GPU.weights / GPU.row
    flops *= GPU.kv_bytes_per_token / GPU.first_read  # a row's operations are as many as the bytes of the weights
    read = model.kv_bytes / bandwidth
    return {
        "weights": model.weight_bytes / bandwidth,
        "row": model.weight_bytes / flops,
        "pair": 4 * model.hidden * model.layers / flops,
        "kv_bytes_per_token": model.kv_bytes,
        "first_read": read,
        "reread_all": read * GPU.reread_all / GPU.first_read,
        "reread_some": read * GPU.reread_some / GPU.first_read,
        "pcie": link,
    }


def _play_virtual(engine: TimedEngine, prompts: Sequence[Prompt], first: int) -> Played:
    """`play` in virtual time."""
    outcomes: dict[str, Outcome] = {}
    came: dict[str, float] = {}
    began, number = engine.clock.now(), 0
    while number < len(prompts) or engine.scheduler.get_num_unfinished_requests():
        while number < len(prompts) and engine.scheduler.get_num_unfinished_requests() < 2 * BATCH:
            prompt, name = prompts[number], str(first + number)
            came[name], outcomes[name] = engine.clock.now(), Outcome()
            engine.submit(Ask(name, tokens_of(prompt, first + number), prompt.output_tokens, came[name]))
            number += 1
        engine.step(outcomes)
    waits = tuple(outcomes[name].first - came[name] for name in came)
    cached = sum(one.cached + one.loaded for one in outcomes.values())
    return Played(engine.clock.now() - began, waits, sum(prompt.tokens for prompt in prompts), cached)


def _usual(context: Context, modelled: bool) -> tuple[str, ...]:
    """The contenders of a run that names none."""
    left_out = {"LRU again"} if modelled else set[str]()
    if not modelled and context.device == CPU:
        left_out |= {one.label for one in _ALL if one.host and one.overrides is None}
    if context.quick:
        left_out |= {"E", "A+P", "E+A+P", "LRU again"}
    return tuple(label for label in CONTENDERS if label not in left_out)


def _rounds(
    folder: Path, model: Shape, own: Mapping[str, Any], contender: Contender, load: Load, context: Context, done: Any
) -> list[Played]:
    block = _BLOCK[context.device]
    arguments: dict[str, Any] = {
        "block_size": block,
        "max_num_seqs": BATCH,
        "max_num_batched_tokens": 8192,
        "max_model_len": 8192,
    }
    if context.device != CPU:
        arguments |= {**GPU_ARGUMENTS, "gpu_memory_utilization": 0.5}  # what the engine before had may not be free yet
    arguments |= {"num_gpu_blocks_override": load.device // block + 1, **own}
    arguments |= contender.arguments(load.host * model.kv_bytes)
    clock, results, first = work_clock(context.device), list[Played](), 0
    with running(folder, **arguments) as engine:
        _check(engine, contender)
        for prompts in load.rounds:
            results.append(play(engine, prompts, first, clock))
            first += len(prompts)
            done(1)
    return results[1:]


def _check(engine: Engine, contender: Contender) -> None:
    """RuntimeError if a part of the plugin is off."""
    if contender.overrides is None:
        return
    guards = engine.scheduler.plumage.guards
    off = {name: guard.reason for name, guard in guards.items() if not guard.on}
    if off or (contender.host and "hostTier" not in guards):
        raise RuntimeError(f"{contender.label}: {off or 'no host tier'}")


def _rate(played: Mapping[str, Sequence[Played]], label: str) -> PairedRatio:
    return paired_ratio([one.rate for one in played[label]], [one.rate for one in played[LRU.label]])


def _wait(played: Mapping[str, Sequence[Played]], label: str) -> PairedRatio:
    """LRU's mean time to first token ÷ that of the contender."""
    return paired_ratio(
        [fmean(one.waits) for one in played[LRU.label]], [fmean(one.waits) for one in played[label]]
    )  # fmt: skip


def _report(found: Mapping[str, Mapping[str, Sequence[Played]]], load: Load) -> Report:
    columns = (
        "contender", "requests/s", "TTFT mean ms", "P50 ms", "P99 ms", "cached", "requests/s ÷ LRU",
        "LRU's TTFT ÷ this",
    )  # fmt: skip
    notes = f"KV cache of {load.device:,} tokens; {len(load.rounds[0])} questions a pair."
    tables = [
        ResultTable(f"Eviction and host memory in real vLLM, {title}", columns, _rows(played), notes)
        for title, played in found.items()
    ]
    keys: dict[str, Figure] = {}
    for label in next(iter(found.values())):
        if label != LRU.label:
            name = label.replace(", ", "_").replace(" ", "_").replace("+", "_")
            rates = [_rate(played, label) for played in found.values()]
            keys |= interval_keys(f"{name}_over_lru", min(rates, key=lambda one: one.ratio))
            keys[f"{name}_ttft"] = min(_wait(played, label).ratio for played in found.values())
    data = {title: {label: [_raw(one) for one in runs] for label, runs in played.items()}
            for title, played in found.items()}  # fmt: skip
    return Report(keys, tables, lambda figure: _plot(figure, found), {"rounds": data})


def _rows(played: Mapping[str, Sequence[Played]]) -> list[list[Figure]]:
    rows: list[list[Figure]] = []
    for label, runs in played.items():
        waits = [wait for one in runs for wait in one.waits]
        rows.append([
            label, fmean(one.rate for one in runs), 1e3 * fmean(waits), 1e3 * median(waits),
            1e3 * quantile(waits, 0.99), sum(one.cached for one in runs) / sum(one.prompt for one in runs),
            str(_rate(played, label)), str(_wait(played, label)),
        ])  # fmt: skip
    return rows


def _raw(one: Played) -> dict[str, Any]:
    return {"seconds": one.seconds, "cached": one.cached / one.prompt, "ttft_s": list(one.waits)}


def _plot(figure: Any, found: Mapping[str, Mapping[str, Sequence[Played]]]) -> None:
    axes = figure.subplots(1, 2)
    width = 0.8 / len(found)
    for axis, of, text in ((axes[0], _rate, "requests a second ÷ LRU"), (axes[1], _wait, "LRU's mean TTFT ÷ this")):
        for place, (title, played) in enumerate(found.items()):
            ratios = [of(played, label) for label in played]
            spread = [[one.ratio - one.low for one in ratios], [one.high - one.ratio for one in ratios]]
            at = [number + place * width for number in range(len(ratios))]
            axis.bar(at, [one.ratio for one in ratios], width, yerr=spread, label=title)
        labels = list(next(iter(found.values())))
        axis.set_xticks([number + 0.4 - width / 2 for number in range(len(labels))], labels, rotation=60)
        axis.axhline(1.0, color="black", linewidth=0.5)
        axis.set_ylabel(text)
    if len(found) > 1:
        axes[1].legend(fontsize="small")
