"""Recursive least squares in four dimensions, for LBGR's residual (KVRouting §4.2, App. A: "learning rate 0.992").

The paper's learning rate is the forgetting factor of its code. Each update divides the covariance by it. A direction
that no traffic excites, such as misses of a replica that never misses, then grows without end. It overflows after some
90,000 updates. So the covariance has a bound: at the bound nothing is forgotten. If rounding makes a variance negative
or not finite, the covariance starts again and the weights stay. The code is written out for the upper triangle, which
keeps the matrix symmetric. A matrix library takes ten times as long at this size.
"""

from __future__ import annotations

from math import isfinite

from plumage import defaults

__all__ = ["Features", "RecursiveLeastSquares"]

Features = tuple[float, float, float, float]

# A larger feature or outcome is an error of a clock, not a measurement: 11 days, or a billion tokens.
_LIMIT = 1e6


class RecursiveLeastSquares:
    """y ≈ θ·x, learned from one (x, y) at a time. weights: θ. trace_limit: the bound of the sum of variances."""

    __slots__ = ("_covariance", "forgetting", "initial_variance", "trace_limit", "updates", "weights")

    def __init__(
        self,
        *,
        forgetting: float = float(defaults.RLS_FORGETTING),
        initial_variance: float = 1e6,
        trace_limit: float = 4e7,
        weights: Features = (0.0, 0.0, 0.0, 0.0),
    ) -> None:
        self.forgetting = forgetting
        self.initial_variance = initial_variance
        self.trace_limit = max(trace_limit, 4.0 * initial_variance)
        self.weights = weights
        self.updates = 0
        self._covariance = _diagonal(initial_variance)

    def predict(self, x: Features) -> float:
        w = self.weights
        return w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3]

    def update(self, x: Features, y: float) -> float:
        """Learn from one outcome, and return the error before learning. Input out of range changes nothing."""
        a, b, c, d = x
        w0, w1, w2, w3 = self.weights
        error = y - (w0 * a + w1 * b + w2 * c + w3 * d)
        low, high = -_LIMIT, _LIMIT
        if not (low < a < high and low < b < high and low < c < high and low < d < high and low < y < high):
            return error
        self.updates += 1
        # px = P·x, with P's upper triangle row by row.
        s00, s01, s02, s03, s11, s12, s13, s22, s23, s33 = self._covariance
        p0 = s00 * a + s01 * b + s02 * c + s03 * d
        p1 = s01 * a + s11 * b + s12 * c + s13 * d
        p2 = s02 * a + s12 * b + s22 * c + s23 * d
        p3 = s03 * a + s13 * b + s23 * c + s33 * d
        spread = a * p0 + b * p1 + c * p2 + d * p3
        forgetting = self.forgetting if s00 + s11 + s22 + s33 < self.trace_limit else 1.0
        gain = 1.0 / (forgetting + spread) if spread >= 0.0 else 0.0
        step = error * gain
        w0, w1, w2, w3 = w0 + step * p0, w1 + step * p1, w2 + step * p2, w3 + step * p3
        if gain == 0.0 or not isfinite(w0 + w1 + w2 + w3):
            self._restart()
            return error
        self.weights = (w0, w1, w2, w3)
        # P ← (P − px·pxᵀ·gain) / forgetting
        inflation = 1.0 / forgetting
        g0, g1, g2, g3 = p0 * gain, p1 * gain, p2 * gain, p3 * gain
        s00, s11 = (s00 - g0 * p0) * inflation, (s11 - g1 * p1) * inflation
        s22, s33 = (s22 - g2 * p2) * inflation, (s33 - g3 * p3) * inflation
        positive = s00 > 0.0 and s11 > 0.0 and s22 > 0.0 and s33 > 0.0
        if positive and s00 + s11 + s22 + s33 < 2.0 * self.trace_limit:
            self._covariance = (
                s00, (s01 - g0 * p1) * inflation, (s02 - g0 * p2) * inflation, (s03 - g0 * p3) * inflation,
                s11, (s12 - g1 * p2) * inflation, (s13 - g1 * p3) * inflation,
                s22, (s23 - g2 * p3) * inflation,
                s33,
            )  # fmt: skip
        else:
            self._restart()
        return error

    def _restart(self) -> None:
        """Reset the covariance and keep the weights."""
        self._covariance = _diagonal(self.initial_variance)
        if not all(map(isfinite, self.weights)):
            self.weights = (0.0, 0.0, 0.0, 0.0)

    @property
    def trace(self) -> float:
        p = self._covariance
        return p[0] + p[4] + p[7] + p[9]


def _diagonal(variance: float) -> tuple[float, ...]:
    return (variance, 0.0, 0.0, 0.0, variance, 0.0, 0.0, variance, 0.0, variance)
