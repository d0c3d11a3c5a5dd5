"""The result of a load: hit ratio, latencies and lost requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from plumage_cli.demo.client import Outcome

__all__ = ["Summary", "comparison", "summarise"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in seconds. lost: requests without a response. cut: responses that broke off and were requested again."""

    requests: int
    lost: int
    cut: int
    hit_ratio: float
    ttft_p50: float
    ttft_p95: float
    latency_p50: float
    errors: tuple[str, ...] = ()


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    """The figures of one run."""
    answered = [outcome for outcome in outcomes if outcome.error is None]
    prompts = sum(outcome.prompt_tokens for outcome in answered)
    ttfts = sorted(outcome.ttft for outcome in answered)
    return Summary(
        requests=len(outcomes),
        lost=len(outcomes) - len(answered),
        cut=sum(outcome.cut for outcome in outcomes),
        hit_ratio=sum(outcome.cached_tokens for outcome in answered) / prompts if prompts else 0.0,
        ttft_p50=_quantile(ttfts, 0.50),
        ttft_p95=_quantile(ttfts, 0.95),
        latency_p50=_quantile(sorted(outcome.latency for outcome in answered), 0.50),
        errors=tuple(sorted({outcome.error for outcome in outcomes if outcome.error})),
    )


def comparison(ours: Summary, baseline: Summary, ours_name: str, baseline_name: str) -> Table:
    """A table of two runs of the same load."""
    table = Table(
        title="The same load on both, with one engine killed",
        caption="The GPUs are simulated. Hit ratios are those of real caches under this load. Times come from a model\n"
        "and are longer while other programs use the cores. `plumage bench` measures with paired seeds.",
        title_justify="left",
        caption_justify="left",
    )
    for column in ("", ours_name, baseline_name, "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("requests", str(ours.requests), str(baseline.requests), "")
    table.add_row("lost", str(ours.lost), str(baseline.lost), "")
    table.add_row("cut responses, requested again", str(ours.cut), str(baseline.cut), "")
    ratio = f"×{ours.hit_ratio / baseline.hit_ratio:.2f}" if baseline.hit_ratio else "–"
    table.add_row("hit ratio (cached ÷ prompt tokens)", f"{ours.hit_ratio:.1%}", f"{baseline.hit_ratio:.1%}", ratio)
    for name, mine, theirs in (
        ("time to first token, P50", ours.ttft_p50, baseline.ttft_p50),
        ("time to first token, P95", ours.ttft_p95, baseline.ttft_p95),
        ("whole response, P50", ours.latency_p50, baseline.latency_p50),
    ):
        table.add_row(name, _ms(mine), _ms(theirs), _speed(mine, theirs))
    return table


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def _speed(mine: float, theirs: float) -> str:
    """How much faster or slower ours is."""
    if not mine or not theirs:
        return "–"
    return f"{theirs / mine:.2f} × faster" if mine <= theirs else f"{mine / theirs:.2f} × slower"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
