"""The cost of context for the tokens of a prompt, learned for the whole fleet.

A token attends to all tokens before it. So m computed tokens behind h cached ones take c·m·(1 + κ·(h + m/2)) seconds;
the second part counts query-key pairs. Without it ŝ of a long prompt is too small, and so is the wait behind it. For
40k tokens the gpu preset takes 1.7 times what their number gives. c_miss is then too high for short prompts. κ depends
on the model, not on the replica. It is learned from the first tokens of the whole fleet, with a prior of 0.

One gap between first tokens shows little. An engine fills its steps, so the step of a short prompt is mostly other
prompts, and all small gaps look alike. Gaps are therefore summed up to `_LONG` tokens, and least squares fit the sums:
seconds ≈ a·tokens + b·pairs + d·requests, κ = b ÷ a. d is the cost of a request beside its tokens. Each sum is divided
by the root of its tokens, since its variance rises with them.
"""

from __future__ import annotations

from math import sqrt

from plumage.routing.regression import RecursiveLeastSquares

__all__ = ["ContextCost", "Stretch"]

_LONG = 32.0  # thousand tokens: some steps of an engine
_SCALE = 10.0  # thousand tokens: κ begins as 0 ± 1/10 (the gpu preset has 0.033, the quadratic device 0.24)
_MOST = 1.0
_FORGETTING = 0.999


class Stretch:
    """Recent work of one replica that is not learned yet: thousands of tokens, pairs in 10⁶, requests and seconds."""

    __slots__ = ("pairs", "requests", "seconds", "tokens")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.tokens = self.pairs = self.seconds = 0.0
        self.requests = 0

    def add(self, hit: float, miss: float, seconds: float) -> None:
        """Learns from a prompt of `miss` thousand tokens behind `hit` cached ones that took `seconds`."""
        self.tokens += miss
        self.pairs += miss * (hit + miss / 2.0)
        self.seconds += seconds
        self.requests += 1


class ContextCost:
    """kappa: the share by which each thousand earlier tokens raise a token's cost; from 0 to 1."""

    __slots__ = ("_fit", "_unit", "kappa")

    def __init__(self) -> None:
        self.kappa = 0.0
        self._unit = 0.0
        self._fit = RecursiveLeastSquares(
            forgetting=_FORGETTING, initial_variance=1.0, trace_limit=4.0, weights=(1.0, 0.0, 0.0, 0.0)
        )

    def learn(self, stretch: Stretch, c_miss: float) -> None:
        """Learn from a stretch that is long enough, and clear it.

        The seconds of the stretch are scaled to the fleet's speed. c_miss: the fleet's, in seconds per 1k tokens. The
        first one becomes the unit of the seconds, because the meaning of c_miss changes with κ."""
        if stretch.tokens < _LONG:
            return
        self._unit = self._unit or c_miss
        if self._unit > 0.0:
            self._update(stretch)
        stretch.clear()

    def _update(self, stretch: Stretch) -> None:
        root = sqrt(stretch.tokens)
        x = (root, stretch.pairs / (_SCALE * root), stretch.requests / (_SCALE * root), 0.0)
        self._fit.update(x, stretch.seconds / (self._unit * root))
        linear, squared = self._fit.weights[:2]
        self.kappa = min(max(squared / (_SCALE * linear), 0.0), _MOST) if linear > 0.0 else 0.0
