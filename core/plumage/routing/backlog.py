"""W as we keep it: what a replica still owes in prefill, and what a second of it buys there.

The paper halves W every 437 ms whatever the replica does, so in overload W says how much came lately, not how much is
left. Ours drains one second a second and is put right at every first token: the request at the head can have at most
its own share worked off, the rest is still to come. It is kept in thousands of tokens, so that what is learned of the
replica's speed holds at once for what was routed before.

The gaps between first tokens teach that speed, c_miss: seconds the replica was busy ÷ thousands of tokens it had to
compute, both fading, so that a large prompt weighs as much as it took. A gap that is wildly longer than expected (a
stall, a clock) counts for no more than `_SURPRISE` times what was expected, or one stall would scare traffic away.
"""

from __future__ import annotations

__all__ = ["Backlog"]

_TRUST = 2.0
_MEMORY = 0.98  # of each first token: about the last fifty requests count
_SURPRISE = 10.0
_LEAST_GAP = 0.5  # seconds that surprise nobody: a step with other requests' prefill in it


class Backlog:
    """Of one replica. `owed`: thousand tokens to compute for `requests` that were routed and have no first token yet.
    `c_miss`: seconds for a thousand computed tokens."""

    __slots__ = ("_prior", "busy_seconds", "c_miss", "computed", "owed", "requests", "since")

    def __init__(self, prior: float) -> None:
        """`prior`: the fleet's c_miss, which counts for as much as `_TRUST` thousand tokens of its own experience."""
        self.busy_seconds = 0.0
        self.computed = 0.0
        self.owed = 0.0
        self.requests = 0
        self.since = 0.0
        self.expect(prior)

    def expect(self, prior: float) -> None:
        """The fleet's c_miss is `prior` today."""
        self._prior = prior
        self._average()

    def start_from(self, c_miss: float, computed: float, prior: float) -> None:
        """Count what another router saw as experience: `computed` thousand tokens at `c_miss` seconds each."""
        self.busy_seconds, self.computed = c_miss * computed, computed
        self.expect(prior)

    def bounds(self) -> tuple[float, float]:
        """W is the larger of two: what is left until the first, when all would be done if the head's progress were
        unbounded, and the second, seconds that the head's progress can't have touched. (0, 0) without work."""
        requests = self.requests
        if not requests:
            return 0.0, 0.0
        seconds = self.owed * self.c_miss
        return self.since + seconds, seconds * (1.0 - 1.0 / requests)

    def add(self, tokens: float, now: float) -> None:
        """`tokens` (in thousands) are to be computed for one more request."""
        if not self.requests:
            self.owed, self.since = 0.0, now
        self.owed += tokens
        self.requests += 1

    def first_token(self, tokens: float, now: float) -> float:
        """A request that owed `tokens` has its first token. Returns the seconds it is held to have taken."""
        expected = max(self.c_miss * tokens, _LEAST_GAP)
        gap = min(max(now - self.since, 0.0), _SURPRISE * expected)
        self.busy_seconds = self.busy_seconds * _MEMORY + gap
        self.computed = self.computed * _MEMORY + tokens
        self._average()
        self.give_up(tokens, now)
        return gap

    def give_up(self, tokens: float, now: float) -> None:
        """A request ended, perhaps without a first token: then nothing is learned from its time."""
        self.owed = max(self.owed - tokens, 0.0)
        self.requests -= 1
        self.since = now

    def fade(self) -> None:
        """Nobody tested this for long: half of the experience is forgotten, and the prior counts for more."""
        self.busy_seconds /= 2.0
        self.computed /= 2.0
        self._average()

    def _average(self) -> None:
        self.c_miss = (self.busy_seconds + self._prior * _TRUST) / (self.computed + _TRUST)
