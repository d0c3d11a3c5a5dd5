"""How long a step takes on this device, fitted to what the steps contained.

    seconds ≈ c₀ + c₁·requests + c₂·prefill tokens + c₃·distinct + c₄·shared by all + c₅·shared by some

The last three are levels of prompts that a step reads: for the first time, again in all requests, and again in some.
They are apart because kernels and caches make repeated reads cheaper, and those of a common prefix cheapest (FEATHER
§3.2). No coefficient is negative.

The fit is a Bayesian linear regression. Before any step, each feature may explain half of a step's time, more or less.
Some steps do not distinguish two features, as with a batch that is always full. Then both explain a part, and a
prediction for another batch has a large standard error. Errors count relative to the step's time. Old steps lose
weight, so the fit follows a device that changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import exp, inf, isclose, isfinite, log, sqrt
from typing import Final

from plumage.batching.stop.table import Row
from plumage.errors import ConfigurationError

__all__ = ["COEFFICIENTS", "SUM", "StepTime"]

COEFFICIENTS: Final = ("step", "request", "prefill_token", "distinct_level", "level_of_all", "level_of_some")
"""Seconds for each of these."""
SUM: Final = "StepTime"
"""What the rows of a fit have as their action."""
_COUNT: Final = len(COEFFICIENTS)
_DISTINCT, _ALL, _SOME = 3, 4, 5
_LEAST: Final = 32.0  # steps, by weight, from which on there is a fit
_EVERY: Final = 16  # steps between two solutions, and the part of the weight that must be new
_PRIOR: Final = 0.5  # part of a step's time that a feature explains before any step: the standard deviation
_ALIKE: Final = 16.0  # steps in a row that are one measurement: their batch is nearly the same
_LEAST_NOISE: Final = 0.01
_OUTLIER: Final = 3.0  # a step that took this many times the predicted time, or this part of it, counts as that
_FIRST: Final = 8  # steps that only show how long a step is
_SHORTEST: Final = 1e-5  # seconds; no step of a model is shorter
_SHORT: Final = 0.2  # of the mean, the least that a step counts as before there is a fit
_LARGEST: Final = 1e40  # of a sum that is passed on; one that is not 0 is at least its inverse
_MOST_STEPS: Final = 1e6  # by weight; what a fit forgets keeps them far below
_ROUNDING: Final = 1e-6  # by which sums that are divided and added up again may contradict one another


class StepTime:
    """forgetting: factor on the weight of a step with each later one."""

    def __init__(self, forgetting: float = 0.999) -> None:
        self._forgetting = forgetting
        self._weight = 0.0
        self._seen, self._mean = 0, 0.0  # steps before there is a fit, and the mean logarithm of their seconds
        self._products = [[0.0] * _COUNT for _ in range(_COUNT)]  # Σ x·xᵀ of x ÷ seconds; the upper triangle
        self._sums = [0.0] * _COUNT  # Σ x ÷ seconds
        self._since: float = _EVERY
        self._coefficients: tuple[float, ...] = (0.0,) * _COUNT
        self._covariance: list[list[float]] | None = None
        self._noise = inf

    @property
    def coefficients(self) -> dict[str, float]:
        """Seconds, by `COEFFICIENTS`. All 0 before there is a fit."""
        return dict(zip(COEFFICIENTS, self._coefficients, strict=True))

    @property
    def noise(self) -> float:
        """Standard deviation of a step's relative error; infinite before there is a fit."""
        return self._noise

    def learn(self, x: Sequence[float], seconds: float, steps: int = 1) -> None:
        """`steps` steps that contained x took `seconds` each. Values that no clock measures change nothing."""
        if not (_SHORTEST < seconds < inf and steps > 0 and all(map(isfinite, x))):
            return
        if self._covariance is None:
            self._seen += steps
            self._mean += (log(seconds) - self._mean) * steps / self._seen
            if self._seen <= _FIRST:
                return
            seconds = max(seconds, _SHORT * exp(self._mean))
        elif (expected := self._value(x)) > 0.0:
            seconds = min(max(seconds, expected / _OUTLIER), _OUTLIER * expected)
        kept = self._forgetting**steps
        scaled = [value / seconds for value in x]
        self._weight = self._weight * kept + steps
        for index, row in enumerate(self._products):
            own = steps * scaled[index]
            self._sums[index] = self._sums[index] * kept + own
            for other in range(index, _COUNT):
                row[other] = row[other] * kept + own * scaled[other]
        self._since += steps
        self._solve()

    def rows(self) -> Iterator[Row]:
        """The sums of the steps as rows of a learned table: (i, j, 0, SUM, steps by weight, Σ xᵢ·xⱼ ÷ seconds²). With
        j = 6 the last is Σ xᵢ ÷ seconds. Nothing before the first step that counts."""
        if self._weight > 0.0:
            for index in range(_COUNT):
                for other in range(index, _COUNT):
                    yield index, other, 0, SUM, self._weight, self._products[index][other]
                yield index, _COUNT, 0, SUM, self._weight, self._sums[index]

    def merge(self, rows: Iterable[Row]) -> None:
        """Adds the steps of other engines. ConfigurationError, and no change, if no fit can have such rows."""
        steps, products, sums = _read(rows)
        trial = StepTime()
        trial._add(steps, products, sums)
        try:
            trial._solve()
        except (ArithmeticError, ValueError) as error:
            raise ConfigurationError(f"no step time can be fitted to the sums: {error}") from error
        if trial._covariance is not None and not all(map(isfinite, (trial._noise, *trial._coefficients))):
            raise ConfigurationError("no step time can be fitted to the sums")
        self._add(steps, products, sums)
        self._solve()

    def _add(self, steps: float, products: Sequence[Sequence[float]], sums: Sequence[float]) -> None:
        self._weight += steps
        for index in range(_COUNT):
            self._sums[index] += sums[index]
            for other in range(index, _COUNT):
                self._products[index][other] += products[index][other]
        self._since = inf

    def predict(self, x: Sequence[float]) -> tuple[float, float]:
        """Seconds, and their standard error; infinite while there is no fit. x: also a difference of features."""
        if self._covariance is None:
            return 0.0, inf
        along = [sum(a * b for a, b in zip(row, x, strict=True)) for row in self._covariance]
        variance = sum(a * b for a, b in zip(x, along, strict=True))
        return self._value(x), sqrt(max(variance, 0.0))

    def _value(self, x: Sequence[float]) -> float:
        return sum(c * value for c, value in zip(self._coefficients, x, strict=True))

    def _solve(self) -> None:
        """Find the coefficients again, if enough steps have come. The first time the noise is unknown too."""
        if self._since < max(_EVERY, self._weight / _EVERY) or self._weight < _LEAST:
            return
        self._since = 0
        if self._noise == inf:
            self._noise = _PRIOR
            self._fit()
            self._fit()
        self._fit()

    def _fit(self) -> None:
        """Leaves out a feature whose coefficient would be negative, the most negative first."""
        noise = max(self._noise, _LEAST_NOISE)
        precision = 1.0 / (noise * noise * _ALIKE)
        prior = self._prior()
        full = [[self._product(i, j) * precision + prior[i] * (i == j) for j in range(_COUNT)] for i in range(_COUNT)]
        used = list(range(_COUNT))
        inverse = self._covariance = _inverse(full)
        while True:
            found = [sum(a * self._sums[j] * precision for a, j in zip(row, used, strict=True)) for row in inverse]
            worst = min(range(len(used)), key=found.__getitem__)
            if found[worst] >= 0.0:
                break
            del used[worst]
            inverse = _inverse([[full[i][j] for j in used] for i in used])
        by_index = dict(zip(used, found, strict=True))
        self._coefficients = tuple(by_index.get(index, 0.0) for index in range(_COUNT))
        self._noise = sqrt(max(self._squared_error(), 0.0) / self._weight)

    def _prior(self) -> list[float]:
        """One ÷ the variance of each coefficient before any step. Features that no step had are levels, like others."""
        mean = [max(value / self._weight, 0.0) for value in self._sums]
        levels = mean[_DISTINCT] + mean[_ALL] + mean[_SOME]
        for index in (_DISTINCT, _ALL, _SOME):
            mean[index] = levels
        return [(value / _PRIOR) ** 2 if value > 0.0 else 1.0 for value in mean]

    def _squared_error(self) -> float:
        """Σ of the squared relative errors, by weight."""
        c = self._coefficients
        twice = 2.0 * sum(a * b for a, b in zip(c, self._sums, strict=True))
        square = sum(c[i] * c[j] * self._product(i, j) for i in range(_COUNT) for j in range(_COUNT))
        return self._weight - twice + square

    def _product(self, one: int, other: int) -> float:
        return self._products[min(one, other)][max(one, other)]


def _read(rows: Iterable[Row]) -> tuple[float, list[list[float]], list[float]]:
    """(steps, Σ x·xᵀ, Σ x) of the rows. ConfigurationError if a row is missing, or sums contradict one another."""
    found: dict[tuple[int, int], float] = {}
    steps = 0.0
    for index, other, _, name, weight, value in rows:
        possible = value == 0.0 or 1.0 / _LARGEST < value < _LARGEST
        if name != SUM or not possible or not 0.0 < weight < _MOST_STEPS or (steps and not isclose(weight, steps)):
            raise ConfigurationError(f"a fitted step time has sums of equal weights, not {name} {value}")
        steps, found[index, other] = weight, value
    wanted = {(index, other) for index in range(_COUNT) for other in range(index, _COUNT + 1)}
    if found.keys() != wanted:
        raise ConfigurationError(f"a fitted step time has {len(wanted)} sums, not {len(found)}")
    full = [[found[min(i, j), max(i, j)] for j in range(_COUNT)] for i in range(_COUNT)]
    for index, row in enumerate(full):
        row.append(found[index, _COUNT])
    full.append([*(row[_COUNT] for row in full), steps])
    if not _is_sum_of_squares(full):
        raise ConfigurationError("the sums of a fitted step time contradict one another")
    return steps, [row[:_COUNT] for row in full[:_COUNT]], full[_COUNT][:_COUNT]


def _is_sum_of_squares(matrix: list[list[float]]) -> bool:
    """Whether the matrix can be Σ x·xᵀ: no elimination step leaves a negative diagonal."""
    rows = [list(row) for row in matrix]
    least = [value[index] * _ROUNDING for index, value in enumerate(rows)]
    for column, head in enumerate(rows):
        pivot = head[column]
        if pivot < -least[column]:
            return False
        for row in range(column + 1, len(rows)):
            if pivot > least[column]:
                factor = rows[row][column] / pivot
                rows[row] = [value - factor * own for value, own in zip(rows[row], head, strict=True)]
            elif rows[row][column] ** 2 > _ROUNDING * matrix[row][row] * matrix[column][column]:
                return False
    return True


def _inverse(matrix: list[list[float]]) -> list[list[float]]:
    """Inverts a positive definite matrix, by Gauss and Jordan after scaling to a diagonal of ones."""
    size = len(matrix)
    scale = [sqrt(matrix[index][index]) for index in range(size)]
    rows = [
        [matrix[i][j] / (scale[i] * scale[j]) for j in range(size)] + [float(i == j) for j in range(size)]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column][column]
        rows[column] = [value / head for value in rows[column]]
        for row in range(size):
            if row != column and (factor := rows[row][column]):
                rows[row] = [value - factor * own for value, own in zip(rows[row], rows[column], strict=True)]
    return [[rows[i][size + j] / (scale[i] * scale[j]) for j in range(size)] for i in range(size)]
