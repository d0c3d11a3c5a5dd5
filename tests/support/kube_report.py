"""The results of faults under load, as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from support.kube_load import Row, Run, hit_ratio
from support.kube_windows import Window

__all__ = ["Fault", "Minute", "first_asked", "first_minute", "table"]


@dataclass(frozen=True)
class Fault:
    """One fault, from its time to the end of the observation. Times are seconds since 1970. `policy`: of the routers.

    `requests` counts all that finished in between; faults that are observed together share requests. Seconds from the
    fault on: `whole_s` until all pods were Ready; `lasts_s` until added replicas were there (0: none are added);
    `back_s` until the last window whose hit ratio was below the required part of `before` (None: the last window was).
    `lowest` is the lowest window's ratio, `after` that of all requests sent after `back_s`.
    """

    name: str
    policy: str
    began: float
    whole_s: float
    lasts_s: float
    before: float
    ended: float = 0.0
    requests: int = 0
    cut: int = 0
    lost: int = 0
    lowest: float = 0.0
    after: float | None = None
    back_s: float | None = None
    slowest_s: float = 0.0

    def read(self, run: Run, back: float, window: Window) -> Fault:
        rows = run.between(self.began, self.ended)
        seen = Counter(row.outcome for row in rows)
        back_s = window.back_s(run, self.began, self.ended, back * self.before)
        return replace(
            self,
            requests=len(rows),
            cut=seen["cut"],
            lost=seen["lost"],
            lowest=window.lowest(run, self.began, self.ended),
            after=hit_ratio(run.sent(self.began + (back_s or 0), self.ended)),
            back_s=back_s,
            slowest_s=max((row.first - row.sent for row in rows if row.first is not None), default=0.0),
        )

    def document(self) -> dict[str, Any]:
        return {name: _rounded(value) for name, value in asdict(self).items() if name not in ("began", "ended")} | {
            "seconds": _rounded(self.ended - self.began)
        }


@dataclass(frozen=True)
class Minute:
    """The first minute of new replicas, beside the others in the same time. Tokens are of prompts. `cold_tokens` are
    those that new replicas computed. The ratio is None if new replicas got no requests: a router has no reason to
    choose them while others hold the prefix and have room."""

    name: str
    requests: int
    ratio: float | None
    peers: float | None
    cold_tokens: int

    def document(self) -> dict[str, Any]:
        return {name: _rounded(value) for name, value in asdict(self).items()}


def first_minute(name: str, run: Run, new: Collection[str], old: Collection[str], seconds: float) -> Minute:
    """One for each new replica, from its own first request on."""
    own: list[Row] = []
    peers: list[Row] = []
    for replica in new:
        began = min((row.sent for row in run.rows if row.replica == replica), default=None)
        if began is not None:
            then = [row for row in run.rows if began <= row.sent < began + seconds]
            own += [row for row in then if row.replica == replica]
            peers += [row for row in then if row.replica in old]
    cold = sum(row.prompt - row.cached for row in own)
    return Minute(name, len(own), hit_ratio(own), hit_ratio(peers), cold)


def first_asked(run: Run, new: Collection[str], start: float, end: float) -> list[Row]:
    """The first request of each group at each new replica. Its cached tokens come from warm-up, since no earlier
    request could have cached them."""
    first: dict[tuple[str, int | None], Row] = {}
    for row in sorted(run.sent(start, end), key=lambda row: row.sent):
        if row.replica in new:
            first.setdefault((row.replica, row.group), row)
    return list(first.values())


def table(faults: Sequence[Fault], minutes: Sequence[Minute]) -> str:
    lines = [
        f"{'fault':28} routed by  requests  cut  lost  hit ratio: before lowest  after  whole in  back in  watched  "
        "first byte"
    ]
    lines += [
        f"{one.name:28} {one.policy:10} {one.requests:7} {one.cut:4} {one.lost:5} {one.before:18.3f} {one.lowest:6.3f} "
        f"{one.after or 0:6.3f} {one.whole_s:7.0f} s {_figure(one.back_s, 0):>6} s {one.ended - one.began:6.0f} s "
        f"{one.slowest_s:9.1f} s"
        for one in faults
    ]
    lines += ["", f"{'first minute of new replicas':28} requests  hit ratio  peers'  tokens computed"]
    lines += [
        f"{one.name:28} {one.requests:8} {_figure(one.ratio):>10} {_figure(one.peers):>7} {one.cold_tokens:16}"
        for one in minutes
    ]
    return "\n".join(lines)


def _figure(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
