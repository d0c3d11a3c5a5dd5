"""W as we keep it: the prefill work of a replica that is not done, and the replica's speed.

The paper halves W every 437 ms, whatever the replica does. So in overload its W shows how much came lately, not how
much is left. Our W falls by one second per second, and every first token corrects it. The request at the head can have
done at most its own work, and the rest is still to come. W is kept in thousands of tokens, so that a new estimate of
the replica's speed also counts for requests that were routed before.

An answer in one piece shows no first token (decision 0023). Engines serve in order. So the next first token behind it
shows that its prefill is done, and so does its own end. Until then the clock counts its work as done, once no streamed
request without a first token is before it. A gap between two first tokens is the time of all tokens computed in it.

The speed, c_miss, is learned from these gaps: busy seconds of the replica ÷ thousands of tokens that it computed. Both
sums fade, so a large prompt weighs as much as it took. A gap that is much longer than expected (a stall, a step of the
clock) counts for at most `_SURPRISE` times the expected one. So one stall keeps no traffic away.

Other routers send requests to the same replica. What they owe and what was computed for them counts like ours (`hear`):
the replica serves all in one queue. Without it the gap between two of our first tokens would contain their work. And
each router's part of W would fall by a second per second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ["Backlog", "Share"]

_TRUST = 2.0
_MEMORY = 0.98  # of each first token: about the last fifty requests count
_SURPRISE = 10.0
_LEAST_GAP = 0.5  # seconds: a shorter expected gap counts as this, since a step may hold other prefills


class Share:
    """The prefill of one request.

    tokens: to compute, in thousands. hit, miss: predicted, in thousands of tokens. seen: whether the request streams,
    so that its first token is visible. owing: whether the prefill is still counted as work. open: whether it counts
    among the answers in one piece that are in flight.
    """

    __slots__ = ("hit", "miss", "number", "open", "owing", "seen", "tokens")

    def __init__(self, tokens: float, *, hit: float = 0.0, miss: float = 0.0, seen: bool = True) -> None:
        self.tokens, self.hit, self.miss, self.seen = tokens, hit, miss, seen
        self.number = 0
        self.owing = True
        self.open = False


class Backlog:
    """The prefill work of one replica.

    owed: thousand tokens to compute for `requests`, which were routed and have no first token yet.
    others_owed, others_requests: the same of other routers.
    c_miss: seconds for a thousand computed tokens.
    doubt: the share of unseen work that counts as owed although the clock says it is done; from 0 to 1.
    """

    __slots__ = (
        "_ahead", "_front", "_last_end", "_number", "_open", "_prior", "_rear", "_seen", "_unsure", "_worked",
        "busy_seconds", "c_miss", "computed", "doubt", "others_owed", "others_requests", "owed", "requests", "since",
    )  # fmt: skip

    def __init__(self, prior: float) -> None:
        """prior: the fleet's c_miss. It weighs as much as `_TRUST` thousand tokens that this replica computed."""
        self.busy_seconds = 0.0
        self.computed = 0.0
        self.owed = 0.0
        self.requests = 0
        self.others_owed = 0.0
        self.others_requests = 0
        self.since = 0.0
        self._number = 0
        self._seen: dict[int, None] = {}  # requests that stream, without a first token yet, in routing order
        self._front: deque[Share] = deque()  # requests without a stream, routed before all of `_seen`
        self._rear: deque[Share] = deque()  # requests without a stream, routed after the first of `_seen`
        self._ahead = 0.0  # thousand tokens of `_front`
        self._worked: deque[Share] = deque()  # done by the clock, and not confirmed by an event yet
        self._unsure = 0.0  # thousand tokens of `_worked`
        self._open = 0  # answers in one piece in flight
        self._last_end = 0.0  # the last end of such an answer, or the start of the first
        self.doubt = 0.0
        self.expect(prior)

    def expect(self, prior: float) -> None:
        """Set the fleet's c_miss, in seconds per thousand tokens, as the prior."""
        self._prior = prior
        self._average()

    def start_from(self, c_miss: float, computed: float, prior: float) -> None:
        """Start with the experience of another router: `computed` thousand tokens at `c_miss` seconds each."""
        self.busy_seconds, self.computed = c_miss * computed, computed
        self.expect(prior)

    def bounds(self) -> tuple[float, float]:
        """(done_at, behind). W at time t is the larger of done_at − t and behind.

        done_at: when all work ends at the learned speed. behind: seconds of work that cannot have begun unseen.
        (0, 0) without work.
        """
        requests, c_miss = self.requests + self.others_requests, self.c_miss
        if not requests and not self._worked:
            return 0.0, 0.0
        owed = (self.owed if self.requests else 0.0) + self.others_owed
        seconds = owed * c_miss
        if not self._front and not self._worked:
            return self.since + seconds, seconds * (1.0 - 1.0 / requests)
        hidden = requests - len(self._front)
        behind = (owed - self._ahead) * c_miss * (1.0 - 1.0 / hidden) if hidden else 0.0
        return self.since + seconds, behind + self.doubt * (self._ahead + self._unsure) * c_miss

    def parts(self, now: float) -> tuple[float, int, float]:
        """Our own work: thousand tokens and number of the requests that stream, and seconds of those that do not.

        The clock counts the latter as done in their turn, as in `_drain`."""
        ahead, behind = self._ahead * self.c_miss, sum([share.tokens for share in self._rear])
        left = min(max(self.since + ahead - now, 0.0), ahead)
        owed = max(self.owed - self._ahead - behind, 0.0) if self._seen else 0.0
        return owed, len(self._seen), left + behind * self.c_miss

    def add(self, share: Share, now: float) -> None:
        """Count the work of one more request."""
        if self._front:
            self._drain(now)
        if not self.requests:
            self.owed = 0.0
            if not self.others_requests:
                self.since = now
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
        """Handle the first token of a request, and learn from its time.

        Returns the seconds that the request and all unseen requests before it took, and these unseen requests.
        """
        passed, tokens = self._pass(share), share.tokens
        for one in passed:
            tokens += one.tokens
        expected = max(self.c_miss * tokens, _LEAST_GAP)
        gap = min(max(now - self.since, 0.0), _SURPRISE * expected)
        self.learn(gap, tokens)
        self.give_up(share, now)
        return gap, passed

    def hear(self, owed: float, requests: int, computed: float, now: float) -> float:
        """Other routers' requests: `owed` for `requests` now, and `computed` thousand tokens since the last call.

        Returns the seconds that these took; 0 where they can't be known. Behind an answer in one piece the clock counts
        our work as done, so what others computed moves nothing."""
        gap, idle = 0.0, not (self.requests or self.others_requests)
        if not self._open:
            if computed > 0.0 and not idle:
                expected = max(self.c_miss * computed, _LEAST_GAP)
                gap = min(max(now - self.since, 0.0), _SURPRISE * expected)
                self.learn(gap, computed)
            if computed > 0.0 or (idle and requests):
                self.since = now
        self.others_owed, self.others_requests = owed, requests
        return gap

    def learn(self, seconds: float, tokens: float) -> None:
        """Learn that `tokens` thousand tokens took `seconds`."""
        self.busy_seconds = self.busy_seconds * _MEMORY + seconds
        self.computed = self.computed * _MEMORY + tokens
        self._average()

    def ended(self, share: Share, now: float) -> float:
        """Handle the end of an answer in one piece: all work before it is done.

        Returns an upper bound of its seconds: the time since the last such end, or since the first such answer began.
        """
        busy, self._last_end = max(now - self._last_end, 0.0), now
        self._pass(share)
        self.give_up(share, now)
        return busy

    def give_up(self, share: Share, now: float) -> None:
        """Remove the work of a request that is computed or ended. Its time teaches nothing."""
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
        self._end_share(share)
        self.since = now
        if self._rear or self._front:
            self._move_up()
        else:
            self._ahead = 0.0

    def fade(self) -> None:
        """Forget half of the experience after a long time without requests, so that the prior counts for more."""
        self.busy_seconds /= 2.0
        self.computed /= 2.0
        self._average()

    def _drain(self, now: float) -> None:
        """Move requests from `_front` to `_worked` whose time has passed by the clock."""
        front, c_miss = self._front, self.c_miss
        while front and self.since + front[0].tokens * c_miss <= now:
            share = front.popleft()
            self.since += share.tokens * c_miss
            self._ahead -= share.tokens
            self._end_share(share)
            self._worked.append(share)
            self._unsure += share.tokens

    def _confirm(self, last: Share) -> None:
        """Everything that was routed up to `last` is computed: the clock was right."""
        worked = self._worked
        while worked and worked[0].number <= last.number:
            self._unsure -= worked.popleft().tokens
        if not worked:
            self._unsure = 0.0

    def _pass(self, last: Share) -> list[Share]:
        """Remove and return the unseen requests that were routed before `last`."""
        if not self._front and not self._rear and not self._worked:
            return []
        passed = []
        self._confirm(last)
        for queue in (self._front, self._rear):
            while queue and queue[0].number < last.number:
                share = queue.popleft()
                if queue is self._front:
                    self._ahead -= share.tokens
                self._end_share(share)
                passed.append(share)
        return passed

    def _end_share(self, share: Share) -> None:
        """Subtracts a share whose prompt is read or whose request has ended."""
        share.owing = False
        self.owed = max(self.owed - share.tokens, 0.0)
        self.requests -= 1

    def _move_up(self) -> None:
        """Move requests from `_rear` to `_front` once no streamed request is before them."""
        rear, front = self._rear, self._front
        first = next(iter(self._seen), None)
        while rear and (first is None or rear[0].number < first):
            self._ahead += rear[0].tokens
            front.append(rear.popleft())

    def _average(self) -> None:
        self.c_miss = (self.busy_seconds + self._prior * _TRUST) / (self.computed + _TRUST)
