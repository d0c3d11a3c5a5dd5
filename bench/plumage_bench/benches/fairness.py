"""`fairness`: what tenants get of a pool that all of them together overload.

Local pools of two simulated engines, made from manifests: the default, and one with `flowControl`. Each of four
tenants has a key:

- many: short prompts, about twice the tokens that the pool serves;
- long: long prompts, about as many tokens as it serves;
- few: a request a second, far less than its share;
- batch: of another class with a quarter of the weight, about as many tokens as `long`.

Service is what the queue shares: the prompt's tokens that were computed, and the answer's twice (VTC, section 4). It
counts when it is given: a prompt's at the first token, an answer's evenly from its first token to its last.
`service_gap`: the largest difference between `many` and `long`, whose shares are equal, ÷ their mean, of all windows.
`weight_gap`: how far the service of `batch` is from its share beside them. `few_ttft`: the P95 of the time to first
token of `few`, default ÷ queue.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from plumage_bench.harness import Context, Figure, Report, ResultTable, interval_keys
from plumage_bench.local_pool import LocalPool, local_pool
from plumage_bench.open_load import Answer, Tenant, play
from plumage_bench.pairs import paired_ratio
from plumage_bench.quantiles import quantile

__all__ = ["run"]

CHAT_WEIGHT, BATCH_WEIGHT = 4, 1
ANSWER_TOKEN: Final = 2  # prompt tokens
TENANTS: Final = {  # requests a second, words of a prompt, tokens of an answer
    "many": (40.0, (50, 300), (10, 40)),
    "long": (4.0, (600, 1400), (10, 40)),
    "few": (1.0, (50, 300), (10, 40)),
    "batch": (10.0, (200, 600), (10, 40)),
}
_AFTER: Final = 5.0  # seconds after the load in which answers may still begin
_BEGUN: Final = 20.0  # seconds after that in which they may end: tokens are known at the end (0340)


@dataclass(frozen=True, slots=True)
class Window:
    """What each tenant got in one window. service: tokens a second. ttft_p95: seconds, of requests sent in the window.
    One without a first token counts with the time until it was given up. None where none was sent. late: seconds, the
    longest that a request was sent after its time. unended: answers that began in the window and have no end, so their
    service is missing."""

    service: Mapping[str, float]
    ttft_p95: Mapping[str, float | None]
    late: float
    unended: int = 0

    @property
    def service_gap(self) -> float:
        one, other = self.service["many"], self.service["long"]
        return abs(one - other) / fmean((one, other))

    @property
    def weight_gap(self) -> float:
        """How far the share of `batch` is from that of its weight, relative to it."""
        classes = self.service["many"] + self.service["long"] + self.service["few"]
        wanted = BATCH_WEIGHT / (BATCH_WEIGHT + CHAT_WEIGHT)
        return abs(self.service["batch"] / (classes + self.service["batch"]) / wanted - 1)


def spec(*, queue: bool) -> dict[str, Any]:
    """The manifest's `spec`."""
    made: dict[str, Any] = {
        "model": {"uri": "builtin://tiny-chat"},
        "engine": {"runtime": "Simulator", "simulator": {"device": {"preset": "GPU"}}},
        "replicas": 2,
    }
    classes = [{"name": "chat", "weight": CHAT_WEIGHT}, {"name": "batch", "weight": BATCH_WEIGHT}]
    return {**made, "flowControl": {"maxRequests": 10_000, "classes": classes}} if queue else made


def run(context: Context) -> Report:
    """Options: pairs."""
    start, end = (15.0, 30.0) if context.quick else (15.0, 55.0)  # by then as many end as start
    pairs = context.count("pairs", 2 if context.quick else 5)
    found: dict[bool, list[Window]] = {False: [], True: []}
    with ExitStack() as stack, context.progress("fairness", 2 * pairs) as advance:
        pools = {queue: stack.enter_context(_pool(queue=queue)) for queue in found}
        for pair in range(pairs):
            for queue in (pair % 2 == 0, pair % 2 != 0):
                seed = f"{context.seed} {pair}"
                url = f"http://127.0.0.1:{pools[queue].port}"
                answers = asyncio.run(play(url, _tenants(queue=queue), end, seed, _AFTER, begun=_BEGUN))
                found[queue].append(window(answers, start, end))
                advance(1)
    return _report(found)


@contextmanager
def _pool(*, queue: bool) -> Iterator[LocalPool]:
    with tempfile.TemporaryDirectory(prefix="plm-") as runtime:
        keys = Path(runtime, "keys")
        keys.write_text("".join(f"{name} key-{name}\n" for name in TENANTS))
        keys.chmod(0o600)
        name = "queue" if queue else "default"
        with local_pool(Path(runtime), spec(queue=queue), name, f"--api-keys={keys}") as made:
            yield made


def _tenants(*, queue: bool) -> list[Tenant]:
    made = []
    for name, (rate, words, tokens) in TENANTS.items():
        headers = {"authorization": f"Bearer key-{name}"}
        if queue:
            headers["x-plumage-class"] = "batch" if name == "batch" else "chat"
        made.append(Tenant(name, rate, words, tokens, headers))
    return made


def window(answers: Sequence[Answer], start: float, end: float) -> Window:
    """Service in [start, end), in seconds since the load began, of answers that ended. The load ends at `end`."""
    service = dict.fromkeys(TENANTS, 0.0)
    times: dict[str, list[float]] = {name: [] for name in TENANTS}
    for one in answers:
        if one.first is not None and one.ended is not None:
            begun = start <= one.first < end
            inside = max(0.0, min(one.ended, end) - max(one.first, start))
            share = inside / (one.ended - one.first) if one.ended > one.first else float(begun)
            service[one.tenant] += begun * (one.prompt - one.cached) + share * ANSWER_TOKEN * one.answered
        if start <= one.sent < end:
            times[one.tenant].append((end + _AFTER if one.first is None else one.first) - one.sent)
    unended = sum(one.first is not None and start <= one.first < end and one.ended is None for one in answers)
    return Window(
        {name: tokens / (end - start) for name, tokens in service.items()},
        {name: quantile(all_, 0.95) if all_ else None for name, all_ in times.items()},
        max(one.late for one in answers),
        unended,
    )


def _report(found: Mapping[bool, Sequence[Window]]) -> Report:
    ttft = {queue: [one.ttft_p95["few"] for one in windows] for queue, windows in found.items()}
    few = [(plain, queued) for plain, queued in zip(ttft[False], ttft[True], strict=True) if plain and queued]
    keys: dict[str, Figure] = {
        "service_gap": max(one.service_gap for one in found[True]),
        "default_service_gap": max(one.service_gap for one in found[False]),
        "weight_gap": max(one.weight_gap for one in found[True]),
        "windows": len(found[True]),
        "unended": sum(one.unended for windows in found.values() for one in windows),
        "late_ms": 1000 * max(one.late for windows in found.values() for one in windows),
    }
    notes = "`few` sent nothing in some window, so its times have no ratio."
    if len(few) == len(found[True]):
        ratio = paired_ratio([plain for plain, _ in few], [queued for _, queued in few])
        keys |= interval_keys("few_ttft", ratio)
        notes = f"P95 TTFT of `few`, default ÷ queue: {ratio}."
    rows = [
        ("queue" if queue else "default", name, TENANTS[name][0], round(fmean(one.service[name] for one in windows)),
         _seconds([one.ttft_p95[name] for one in windows]))
        for queue, windows in found.items() for name in TENANTS
    ]  # fmt: skip
    gaps = ", ".join(f"{one.service_gap:.3f}" for one in found[True])
    table = ResultTable(
        "Service of tenants that overload a pool together, in tokens a second",
        ("pool", "tenant", "requests a second", "service", "P95 TTFT, s"),
        rows,
        f"{notes} Differences of `many` and `long` in each window of the queue: {gaps}.",
    )
    data = {"queue" if queue else "default": [_plain(one) for one in windows] for queue, windows in found.items()}
    return Report(keys, (table,), lambda figure: _plot(figure, found), data)


def _seconds(times: Sequence[float | None]) -> Figure:
    known = [time for time in times if time is not None]
    return round(fmean(known), 2) if len(known) == len(times) else "not in all windows"


def _plain(one: Window) -> dict[str, Any]:
    return {"service": dict(one.service), "ttft_p95": dict(one.ttft_p95), "late": one.late, "unended": one.unended}


def _plot(figure: Any, found: Mapping[bool, Sequence[Window]]) -> None:
    axes = figure.subplots()
    for offset, (queue, windows) in enumerate(found.items()):
        places = [number + 0.4 * offset for number in range(len(TENANTS))]
        heights = [fmean(one.service[name] for one in windows) for name in TENANTS]
        axes.bar(places, heights, width=0.4, label="queue" if queue else "default")
    axes.set_xticks([number + 0.2 for number in range(len(TENANTS))], list(TENANTS))
    axes.set_ylabel("service, tokens a second")
    axes.legend()
