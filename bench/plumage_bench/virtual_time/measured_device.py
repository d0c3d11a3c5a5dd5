"""Devices whose prefill no learned estimator can describe exactly: a table of measured step times, and a model with
waves and windows.

`MeasuredDevice` reads a table of steps of a real engine: prefill seconds by tokens computed and tokens of context
before them, decode seconds by batch and context. It interpolates linearly, and extrapolates from the last two points.
More prompt tokens than the table has are counted as equal pieces with their mean context, since the pieces of one
prompt are evenly distributed about it. Of several pieces, and of prefill beside decoding, all but one count without the
time of an almost empty step.

`WindowedDevice` is a GPU that processes rows in waves of `wave`; a step takes the time of whole waves. Half of its
layers attend only to the last `window` tokens, as in models with sliding-window attention. Its prefill time is not
c·m·(1 + κ·(h + m/2)). Below the window it grows with context, beyond it half as fast, and short prompts pay for the
unused part of a wave.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from plumage.errors import ConfigurationError
from plumage_engine.simulator.engine.device import Device, GpuDevice, StepShape

__all__ = ["MeasuredDevice", "StepTable", "WindowedDevice"]


@dataclass(frozen=True)
class StepTable:
    """seconds[i][j] at rows[i] and columns[j]. Rows and columns ascend, and there are two or more of each."""

    rows: Sequence[float]
    columns: Sequence[float]
    seconds: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        ascending = all(list(axis) == sorted(set(axis)) and len(axis) >= 2 for axis in (self.rows, self.columns))
        whole = len(self.seconds) == len(self.rows) and all(len(row) == len(self.columns) for row in self.seconds)
        if not ascending or not whole or not all(one > 0 for row in self.seconds for one in row):
            raise ConfigurationError(
                "a table of step times needs ascending rows and columns and a time above 0 at each"
            )

    def at(self, row: float, column: float) -> float:
        """The seconds at this point, at least 0."""
        low, weight = _place(self.rows, row)
        first, second = (self._along(self.seconds[index], column) for index in (low, low + 1))
        return max(first + weight * (second - first), 0.0)

    def _along(self, seconds: Sequence[float], column: float) -> float:
        low, weight = _place(self.columns, column)
        return seconds[low] + weight * (seconds[low + 1] - seconds[low])


def _place(axis: Sequence[float], value: float) -> tuple[int, float]:
    """The pair of points about `value`, or the last two, and the position of `value` between them (0 to 1, or
    beyond)."""
    low = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
    return low, (value - axis[low]) / (axis[low + 1] - axis[low])


@dataclass(frozen=True)
class MeasuredDevice(Device):
    """prefill: by tokens of context before, tokens computed. decode: by requests, tokens of context of each. Of the
    cost fields of `Device` it reads only kv_bytes_per_token, pcie and time_scale."""

    prefill: StepTable | None = None
    decode: StepTable | None = None

    @staticmethod
    def of(document: Mapping[str, Any], like: Device, cold_tokens: int) -> MeasuredDevice:
        """From the table of `plumage bench vllm-steps`, scaled so that a cold prompt of this many tokens takes as long
        as on `like`, in one step."""
        tables = [
            StepTable(part[rows], part[columns], part["seconds"])
            for part, rows, columns in (
                (document["prefill"], "context", "tokens"),
                (document["decode"], "batch", "context"),
            )
        ]
        shape = StepShape(prefill_tokens=cold_tokens, prefill_pairs=cold_tokens * cold_tokens / 2)
        scale = like.seconds(shape) / tables[0].at(0.0, cold_tokens)
        return MeasuredDevice(
            0.0, 0.0, 0.0, 0.0, 0.0, like.kv_bytes_per_token, like.pcie, scale, prefill=tables[0], decode=tables[1]
        )

    def seconds(self, shape: StepShape) -> float:
        assert self.prefill is not None
        assert self.decode is not None
        tokens, parts, taken = shape.prefill_tokens, 0, 0.0
        if tokens:
            parts = ceil(tokens / self.prefill.columns[-1])
            piece = tokens / parts
            before = max(shape.prefill_pairs / tokens - piece / 2.0, 0.0)
            taken += parts * self.prefill.at(before, piece)
        if shape.decodes:
            parts += 1
            taken += self.decode.at(shape.decodes, shape.context / shape.decodes)
        empty = self.decode.seconds[0][0]
        taken = max(taken - (parts - 1) * empty, empty)
        return max(taken, shape.pcie_bytes / self.pcie / self.time_scale) * self.time_scale


@dataclass(frozen=True)
class WindowedDevice(GpuDevice):
    """wave: rows that a step computes at a time. window: context tokens that half of the layers attend to."""

    wave: int = 512
    window: int = 2048

    def seconds(self, shape: StepShape) -> float:
        tokens = shape.prefill_tokens
        if not tokens:
            return super().seconds(shape)
        seen = shape.prefill_pairs / tokens
        pairs = tokens * (seen + min(seen, float(self.window))) / 2.0
        rows = ceil((tokens + shape.decodes) / self.wave) * self.wave
        return super().seconds(
            StepShape(
                decodes=shape.decodes,
                context=shape.context,
                distinct=shape.distinct,
                shared=shape.shared,
                prefill_tokens=rows - shape.decodes,
                prefill_pairs=pairs,
                pcie_bytes=shape.pcie_bytes,
                ordered=shape.ordered,
            )
        )
