"""The cost of context for the tokens of a prompt, learned for the whole fleet.

A token attends to all before it, so m computed tokens behind h cached ones take c·m·(1 + κ·(h + m/2)): the second part
counts query-key pairs. Without it a long prompt's ŝ is too small, and so is the wait behind it (40k tokens take the gpu
preset 1.7 times what their number says), while c_miss is too high for the short ones. κ is a property of the model, not
of a replica: it is learned from the first tokens of the whole fleet, with a prior of 0.

One gap between first tokens shows little: an engine fills its steps, so a short prompt's step is mostly other prompts,
and small gaps would all look alike. Gaps are therefore summed up to `_LONG` tokens, and least squares fit those sums:
seconds ≈ a·tokens + b·pairs + d·requests, κ = b ÷ a. The last part takes up what a request costs beside its tokens.
Each sum is divided by the root of its tokens, as its variance rises with them.
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
    """Recent work of one replica that was not learned from yet: thousands of tokens, their pairs in 10⁶, requests, and
    seconds."""

    __slots__ = ("pairs", "requests", "seconds", "tokens")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.tokens = self.pairs = self.seconds = 0.0
        self.requests = 0

    def add(self, hit: float, miss: float, seconds: float) -> None:
        """A prompt of `miss` thousand tokens behind `hit` cached ones took `seconds`."""
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

        Its seconds are those of a replica of the fleet's speed. `c_miss`, seconds per 1k tokens there, is the unit in
        which they are counted; the first is kept, since what c_miss means moves with κ."""
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
