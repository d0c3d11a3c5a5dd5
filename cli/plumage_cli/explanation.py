"""The router's record of one request as text: why its replica was chosen, predictions and outcomes."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from rich.console import Console
from rich.table import Table

__all__ = ["Explanation", "show"]


class _Pair(TypedDict):
    predicted: float | None
    actual: float | None


class _PromptTokens(TypedDict):
    estimated: float
    actual: float | None


class _Chunks(TypedDict):
    prompt: int
    matched: int


class _Candidate(TypedDict):
    replica: str
    hitTokens: float
    score: float | None


class _Failure(TypedDict):
    replica: str
    reason: str


class _Shadow(TypedDict):
    policy: str
    replica: str
    hitTokens: float


class Explanation(TypedDict):
    """The fields of the router's record that are shown, in seconds and tokens. A newer router may send more. An older
    one sends no `available`, because it considered every replica, and no `shadow`."""

    requestId: str
    model: str
    policy: str
    replica: str
    why: str
    promptTokens: _PromptTokens
    hitTokens: _Pair
    chunks: _Chunks
    ttft: _Pair
    latency: _Pair
    candidates: list[_Candidate]
    considered: int
    available: NotRequired[int]
    degraded: bool
    decisionMicroseconds: float
    failures: list[_Failure]
    shadow: NotRequired[_Shadow | None]


def show(record: Explanation, console: Console) -> None:
    """Print the record of `GET /plumage/v1/explain/{id}`."""
    console.print(f"request {record['requestId']} for {record['model']} → {record['replica']} ({record['policy']})")
    console.print(f"why: {record['why']}")
    for failure in record["failures"]:
        console.print(f"an attempt on {failure['replica']} failed before: {failure['reason']}")
    if (shadow := record.get("shadow")) is not None:
        held = f"which holds {_number(shadow['hitTokens'])} of its tokens"
        console.print(f"the shadow policy {shadow['policy']} would have chosen {shadow['replica']}, {held}")
    if record["degraded"]:
        console.print("the directory was not available: the router decided from its own data")
    console.print(_figures(record))
    console.print(_candidates(record))
    console.print(_how(record), soft_wrap=True)


def _figures(record: Explanation) -> Table:
    prompt, hits = record["promptTokens"], record["hitTokens"]
    table = Table()
    for column in ("", "predicted", "actual"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("prompt tokens", _number(prompt["estimated"]), _number(prompt["actual"]))
    table.add_row("cached tokens", _number(hits["predicted"]), _number(hits["actual"]))
    table.add_row("time to first token", _seconds(record["ttft"]["predicted"]), _seconds(record["ttft"]["actual"]))
    table.add_row("whole response", _seconds(record["latency"]["predicted"]), _seconds(record["latency"]["actual"]))
    return table


def _candidates(record: Explanation) -> Table:
    table = Table()
    table.add_column("candidate")
    table.add_column("cached tokens", justify="right")
    table.add_column("score", justify="right")
    for candidate in record["candidates"]:
        chosen = "→ " if candidate["replica"] == record["replica"] else "  "
        score = "–" if candidate["score"] is None else f"{candidate['score']:.4g}"
        table.add_row(chosen + candidate["replica"], str(candidate["hitTokens"]), score)
    return table


def _how(record: Explanation) -> str:
    chunks, considered = record["chunks"], record["considered"]
    scored = any(candidate["score"] is not None for candidate in record["candidates"])
    return (
        f"{considered} of {record.get('available', considered)} considered; "
        f"{chunks['matched']} of {chunks['prompt']} chunks in the directory; "
        f"decided in {record['decisionMicroseconds']:g} µs{'; the lowest score wins' if scored else ''}"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value * 1000:,.0f} ms"
