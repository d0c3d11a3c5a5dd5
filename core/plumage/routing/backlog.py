"""W as we keep it: what a replica still owes in prefill, and what a second of it buys there.

The paper halves W every 437 ms whatever the replica does, so in overload W says how much came lately, not how much is
left. Ours drains one second a second and is put right at every first token: the request at the head can have at most
its own share worked off, the rest is still to come. It is kept in thousands of tokens, so that what is learned of the
replica's speed holds at once for what was routed before.

An answer in one piece shows no first token (0023). Engines serve in order, so the next first token behind it says that
it is past its prefill, as does its own end at the latest; until then the clock works it off, once it stands in front of
all whose first token is still to come. A gap is the time of all the tokens that were computed in it.

That speed, c_miss, is learned from the gaps between first tokens: seconds the replica was busy ÷ thousands of tokens
it had to compute, both fading, so that a large prompt weighs as much as it took. A gap that is much longer
than expected (a stall, a clock) counts for no more than `_SURPRISE` times what was expected. So one stall keeps no
traffic away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ["Backlog", "Share"]

_TRUST = 2.0
_MEMORY = 0.98  # of each first token: about the last fifty requests count
_SURPRISE = 10.0
_LEAST_GAP = 0.5  # seconds that surprise nobody: a step with other requests' prefill in it


class Share:
    """What one request owes: `tokens` (in thousands) to compute, `hit` and `miss` as predicted. `seen`: its first token
    will be. `owing`: until that, or what stands for it. `open`: counted among the answers in one piece under way."""

    __slots__ = ("hit", "miss", "number", "open", "owing", "seen", "tokens")

    def __init__(self, tokens: float, *, hit: float = 0.0, miss: float = 0.0, seen: bool = True) -> None:
        self.tokens, self.hit, self.miss, self.seen = tokens, hit, miss, seen
        self.number = 0
        self.owing = True
        self.open = False


class Backlog:
    """Of one replica. `owed`: thousand tokens to compute for `requests` that were routed and have no first token yet.
    `c_miss`: seconds for a thousand computed tokens. `doubt`: of what is unseen and has not ended, how much is owed
    whatever the clock says."""

    __slots__ = (
        "_ahead", "_front", "_last_end", "_number", "_open", "_prior", "_rear", "_seen", "_unsure", "_worked",
        "busy_seconds", "c_miss", "computed", "doubt", "owed", "requests", "since",
    )  # fmt: skip

    def __init__(self, prior: float) -> None:
        """`prior`: the fleet's c_miss, which counts for as much as `_TRUST` thousand tokens of its own experience."""
        self.busy_seconds = 0.0
        self.computed = 0.0
        self.owed = 0.0
        self.requests = 0
        self.since = 0.0
        self._number = 0
        self._seen: dict[int, None] = {}  # whose first token is to come, by the order of routing
        self._front: deque[Share] = deque()  # of the others those before all of these …
        self._rear: deque[Share] = deque()  # … and those behind the first of them
        self._ahead = 0.0  # thousand tokens of `_front`
        self._worked: deque[Share] = deque()  # those that the clock worked off, as far as nothing has confirmed it
        self._unsure = 0.0  # thousand tokens of these
        self._open = 0  # answers in one piece under way
        self._last_end = 0.0  # of one of them, or the start of the first
        self.doubt = 0.0
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
        unbounded, and the second, seconds that no progress can have touched unseen. (0, 0) without work."""
        requests, c_miss = self.requests, self.c_miss
        if not requests and not self._worked:
            return 0.0, 0.0
        seconds = self.owed * c_miss
        if not self._front and not self._worked:
            return self.since + seconds, seconds * (1.0 - 1.0 / requests)
        hidden = requests - len(self._front)
        behind = (self.owed - self._ahead) * c_miss * (1.0 - 1.0 / hidden) if hidden else 0.0
        return self.since + seconds, behind + self.doubt * (self._ahead + self._unsure) * c_miss

    def add(self, share: Share, now: float) -> None:
        """One more request's share is to be computed."""
        if self._front:
            self._drain(now)
        if not self.requests:
            self.owed, self.since = 0.0, now
        self.owed += share.tokens
        self.requests += 1
        self._number = share.number = self._number + 1
        if share.seen:
            self._seen[share.number] = None
            return
        if not self._open:
            self._last_end = now
        self._open += 1
        share.open = True
        if self._seen:
            self._rear.append(share)
        else:
            self._front.append(share)
            self._ahead += share.tokens

    def first_token(self, share: Share, now: float) -> tuple[float, Sequence[Share]]:
        """The request has its first token. Returns the seconds that it is held to have taken, with all that were
        computed before it and not seen, and these."""
        passed, tokens = self._pass(share), share.tokens
        for one in passed:
            tokens += one.tokens
        expected = max(self.c_miss * tokens, _LEAST_GAP)
        gap = min(max(now - self.since, 0.0), _SURPRISE * expected)
        self.learn(gap, tokens)
        self.give_up(share, now)
        return gap, passed

    def learn(self, seconds: float, tokens: float) -> None:
        """So many thousand tokens took so many seconds."""
        self.busy_seconds = self.busy_seconds * _MEMORY + seconds
        self.computed = self.computed * _MEMORY + tokens
        self._average()

    def ended(self, share: Share, now: float) -> float:
        """An answer in one piece is there: nothing before it is owed any more. Returns the seconds since the last one,
        as far as such answers were under way: it took no longer than that."""
        busy, self._last_end = max(now - self._last_end, 0.0), now
        self._pass(share)
        self.give_up(share, now)
        return busy

    def give_up(self, share: Share, now: float) -> None:
        """A request is computed or ended, perhaps without a first token: nothing is learned from its time."""
        if share.open:
            self._open -= 1
            share.open = False
        if not share.owing:
            if share in self._worked:
                self._worked.remove(share)
                self._unsure -= share.tokens
            return
        if share.seen:
            self._seen.pop(share.number, None)
        elif self._front and share.number <= self._front[-1].number:
            self._front.remove(share)
            self._ahead -= share.tokens
        else:
            self._rear.remove(share)
        self._settle(share)
        self.since = now
        if self._rear or self._front:
            self._move_up()
        else:
            self._ahead = 0.0

    def fade(self) -> None:
        """Nobody tested this for long: half of the experience is forgotten, and the prior counts for more."""
        self.busy_seconds /= 2.0
        self.computed /= 2.0
        self._average()

    def _drain(self, now: float) -> None:
        """The clock worked off what stands in front unseen."""
        front, c_miss = self._front, self.c_miss
        while front and self.since + front[0].tokens * c_miss <= now:
            share = front.popleft()
            self.since += share.tokens * c_miss
            self._ahead -= share.tokens
            self._settle(share)
            self._worked.append(share)
            self._unsure += share.tokens

    def _confirm(self, last: Share) -> None:
        """The clock was right: what was routed up to `last` is computed."""
        worked = self._worked
        while worked and worked[0].number <= last.number:
            self._unsure -= worked.popleft().tokens
        if not worked:
            self._unsure = 0.0

    def _pass(self, last: Share) -> list[Share]:
        """Takes out whatever was routed before `last` and can't be seen."""
        if not self._front and not self._rear and not self._worked:
            return []
        passed = []
        self._confirm(last)
        for queue in (self._front, self._rear):
            while queue and queue[0].number < last.number:
                share = queue.popleft()
                if queue is self._front:
                    self._ahead -= share.tokens
                self._settle(share)
                passed.append(share)
        return passed

    def _settle(self, share: Share) -> None:
        share.owing = False
        self.owed = max(self.owed - share.tokens, 0.0)
        self.requests -= 1

    def _move_up(self) -> None:
        """What had only seen requests before it, and has none any more, stands in front now."""
        rear, front = self._rear, self._front
        first = next(iter(self._seen), None)
        while rear and (first is None or rear[0].number < first):
            self._ahead += rear[0].tokens
            front.append(rear.popleft())

    def _average(self) -> None:
        self.c_miss = (self.busy_seconds + self._prior * _TRUST) / (self.computed + _TRUST)
