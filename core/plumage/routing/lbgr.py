"""LBGR, the default form: the least predicted time to first token, with the delay that it causes for others.

Source: KVRouting §4.2; `lbgr_paper` has the printed form.

predicted = ŝ + W + θ·x, with x = (hit, miss, W, 1) in 1k tokens and seconds.
ŝ = c_hit·hit + c_miss·miss·(1 + κ·context) is the request's own prefill; W is the prefill still owed at the replica.

What differs from the printed form:
- The time to first token decides. A long output would hide what routing can change. The end-to-end latency has its own
  estimator, for reports.
- κ, the extra cost of attention in long prompts, is learned for the fleet (`context_cost`).
- c_miss is learned per replica. W falls in real time, and a first token removes the rest of its request (`backlog`).
- The score adds `crowding` times the delay of others: about (arrivals a second and replica) · (W + ŝ) requests come
  before the queue is empty, and each waits ŝ longer. Without it a busy fleet copies each prefix to every replica.
  Requests of the same prefix find the copy. Where they are a share of all arrivals, `crowding` falls by it, counted in
  shares of one replica (`popularity`): no copy is charged of a prefix that would fill a replica alone.
- Computed tokens fill a replica's cache and attract later requests. So computing costs more on a replica that computed
  more tokens recently than the candidate that computed least (`spread`): three times ŝ at most. Without it an idle
  fleet sends all new prompts to the fastest replica, until its cache overflows. Without the bound an idle fleet
  sends prompts to a replica that is four times slower.
- A prompt that continues an earlier one, half of which a candidate caches, pays `copying` times ŝ more, 90 s at most
  (`former`). A conversation usually has one future, so nothing reads the copy that it leaves. Prefixes that many
  prompts share are copied freely.
- θ·x changes the prediction by at most `most_correction` of ŝ + W. Its four weights are noisy, and the least score
  would otherwise select the noise.
- Hits come from the engines' events. The `cached_tokens` of each answer show how many were found, and a replica whose
  hits are often evicted before their turn has its hits reduced.
- Behind a long queue the hits are those of the request's turn (`queued`). `crowding` looks at most `foresight` seconds
  ahead, since the fleet changes. Without that bound an overloaded fleet lets queues differ by minutes.
- Of a large fleet `considered` candidates are scored: the best owners, the former home and a sample (`shortlist`).
- An answer in one piece shows no first token. `_ended` and `backlog` learn from its end.
- Requests of other routers count like this router's: their work in W, their arrivals in λ, their tokens in `spread`
  (`hear`). Their answers in one piece, and all of routers of an older version, are seconds of work (`foreign_work`).
- Equal scores are drawn at random. A new slot starts from the fleet's averages. An estimate moves towards them after a
  long time without requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, inf
from typing import ClassVar

from plumage.routing.backlog import Backlog, Share
from plumage.routing.context_cost import ContextCost
from plumage.routing.former import MOST_HELD, FormerHomes
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState, Ticket
from plumage.routing.lbgr_replica import MOST_LESSONS, Replica, Routed
from plumage.routing.lbgr_settings import LbgrSettings
from plumage.routing.learned import MOST_UPDATES, Learned
from plumage.routing.others import Account, Others
from plumage.routing.popularity import PrefixShares
from plumage.routing.queued import QueuedPrefixes
from plumage.routing.regression import Features, RecursiveLeastSquares
from plumage.routing.shortlist import Shortlist
from plumage.routing.ties import lowest_index
from plumage.routing.work import DecayingWork

__all__ = ["Lbgr"]

_LEAST_MISS = 0.016  # 1k tokens: an engine computes the last block again even if it holds the whole prompt
_LEAST_SHARE = 0.1  # of ŝ + W: a correction never predicts less
_LEAST_C_MISS = 1e-6  # seconds per 1k tokens: less means that the clock stands still
_MOST_COPYING = 90.0  # seconds: without a bound a long prompt would wait many minutes for its own replica
_MOST_FILLED = 3.0  # times ŝ, by `spread`
_FLEET_MEMORY = 0.995  # of each first token anywhere
_SETTLED = 20.0  # 1k computed tokens, before which ŝ is too inaccurate to learn from its error
_LEAST_WINDOW = 0.5  # seconds: a shorter window gives no useful rate of arrivals
_REPORTED = 4  # one answer in this many teaches the end-to-end latency, which is only reported
_LESSONS = 50.0  # outcomes a second that a regression learns from; more would erase all but the last moment
_DOUBT = 0.5  # `Backlog.doubt` of a replica without streams, whose progress is not visible
_TESTED = 20  # outcomes after which a replica's weights count in the fleet's


# What a score reads of a slot: c_miss, trust in hits, the four weights θ.
_Known = tuple[float, float, float, float, float, float]


class Lbgr:
    """LBGR. `choose` stores the chosen replica's `foreign_work` for `routed`: call them in pairs."""

    name: ClassVar[str] = "Lbgr"

    def __init__(self, *, rng: Randomness, settings: LbgrSettings | None = None) -> None:
        self._rng = rng
        self.settings = settings or LbgrSettings()
        self._replicas: list[Replica] = []
        # By slot. Both values of `Backlog.bounds` have lists of their own, since `_any_long` reads nothing else.
        # Compiled code checks every item of a tuple to read one.
        self._done_at: list[float] = []
        self._behind: list[float] = []
        self._known: list[_Known] = []
        self._foreign = 0.0
        self._arrivals = 0.0
        self._arrived = 0.0
        self._began = inf
        self._turn = 0
        self._context = ContextCost()
        self._fleet_seconds = self._fleet_computed = 0.0
        self._seen = -inf  # the last first token of a stream, anywhere
        self._busy_seconds = self._busy_tokens = 0.0  # of replicas with answers in one piece under way
        self._recent = DecayingWork(factor=exp(-1.0), interval=self.settings.spread_seconds)
        self._former = FormerHomes(self.settings.loyalty)
        self._queued = QueuedPrefixes(self.settings.long_queue)
        self._others = Others()
        self._popularity = PrefixShares()
        self._shortlist = Shortlist(self.settings.considered, rng)

    # --- deciding ---------------------------------------------------------------------------------------------------

    def choose(self, query: Query, replicas: Sequence[ReplicaState]) -> Choice:
        home, copying = self._former_home(query, replicas)
        considered = self._shortlist.of(query.hits, replicas, home)
        if self._queued.any_at(query.now) and self._any_long(considered, query.now):
            slots = [replica.slot for replica in considered]
            query = self._at_its_turn(query, slots)
        try:
            scores = self._scores(query, considered, len(replicas), copying)
        except IndexError:
            self._grow(1 + max(replica.slot for replica in replicas))
            scores = self._scores(query, considered, len(replicas), copying)
        self._former.prefer(home, considered, scores)
        best = considered[lowest_index(scores, self._rng)]
        self._foreign = best.foreign_work
        return Choice(best.slot, scores, () if considered is replicas else considered)

    def _former_home(self, query: Query, replicas: Sequence[ReplicaState]) -> tuple[int | None, float]:
        """(slot to prefer, cost of a copy in times ŝ). The slot is None if a candidate caches half of the prompt."""
        hits = query.hits
        former = self._former.of(query, max(hits.values()) if hits else 0.0)
        if former is None:
            return None, 0.0
        held = self._shortlist.most_held(hits, replicas)
        return (former, 0.0) if held < MOST_HELD * query.tokens else (None, self.settings.copying)

    def _any_long(self, replicas: Sequence[ReplicaState], now: float) -> bool:
        """Whether a request would wait in a long queue of one of them."""
        done_at, behind, long = self._done_at, self._behind, self.settings.long_queue
        end, known = now + long, len(done_at)
        for replica in replicas:
            slot = replica.slot
            if slot < known and (done_at[slot] > end or behind[slot] > long):
                return True
        return False

    def _at_its_turn(self, query: Query, slots: list[int]) -> Query:
        """The query with the hits that are expected when its turn comes at each of `slots`."""
        done_at, behinds, now, known = self._done_at, self._behind, query.now, len(self._known)
        waits: dict[int, float] = {}
        for slot in slots:
            wait = 0.0
            if slot < known:
                wait, behind = done_at[slot] - now, behinds[slot]
                if wait < behind:
                    wait = behind
            waits[slot] = wait
        return Query(
            now, query.tokens, self._queued.expected(query, waits), query.chunks, query.text, query.stream, query.ends,
            query.cached_chunks,
        )  # fmt: skip

    def _scores(self, query: Query, replicas: Sequence[ReplicaState], candidates: int, copying: float) -> list[float]:
        """Returns one score for each of `replicas`, which are all or some of the `candidates`. One loop without calls,
        because it runs once per replica and request."""
        done, behinds, known, hits, now = self._done_at, self._behind, self._known, query.hits, query.now
        c_hit, tokens = self.settings.c_hit, query.tokens / 1000.0
        recent = self._recent.scaled
        crowd, spread = self._prices(now, candidates)
        others = 1.0 - candidates * self._popularity.of(query)
        crowd *= others if others > 0.0 else 0.0
        least = min([recent[replica.slot] for replica in replicas])  # after `_prices`, which may scale them all
        most, far = self.settings.most_correction, self.settings.foresight
        whole = tokens if tokens > _LEAST_MISS else _LEAST_MISS
        kappa = self._context.kappa
        cold = whole * (1.0 + kappa * whole / 2.0)
        scores = []
        for replica in replicas:
            slot = replica.slot
            c_miss, trust, per_hit, per_miss, per_work, bias = known[slot]
            work, behind = done[slot] - now, behinds[slot]
            if work < behind:
                work = behind
            work += replica.foreign_work
            if slot in hits:
                hit = hits[slot] * trust / 1000.0
                miss = tokens - hit
                if miss < _LEAST_MISS:
                    miss = _LEAST_MISS
                service = c_hit * hit + c_miss * miss * (1.0 + kappa * (hit + miss / 2.0))
                base = service + work
                correction = per_hit * hit + per_miss * miss + per_work * work + bias
            else:  # most replicas of a large fleet: leave out the terms of a hit
                service = c_miss * cold
                base = service + work
                correction = per_miss * whole + per_work * work + bias
            bound = most * base
            if not -bound < correction < bound:
                correction = bound if correction > 0.0 else -bound
            ahead = base if base < far else far
            filled = spread * (recent[slot] - least)
            if filled > _MOST_FILLED:
                filled = _MOST_FILLED
            copied = copying * service
            scores.append(
                base
                + correction
                + service * (crowd * ahead + filled)
                + (copied if copied < _MOST_COPYING else _MOST_COPYING)
            )
        return scores

    def _prices(self, now: float, candidates: int) -> tuple[float, float]:
        """(crowd, spread): what a score adds for a second of work, and for a thousand recently computed tokens.

        crowd follows the requests a second that each replica gets. spread is in the scale of `_recent`.
        """
        settings = self.settings
        window, long = settings.arrival_seconds, settings.spread_seconds
        quiet, age = self._arrived - now, self._began - now
        if quiet > 0.0:
            quiet = 0.0
        if age > -_LEAST_WINDOW:
            age = -_LEAST_WINDOW
        # While the first window is not over, a fading average stands for fewer seconds.
        arrivals = self._arrivals * exp(quiet / window) / (window * -expm1(age / window) * candidates)
        c_miss = self._fleet_seconds / self._fleet_computed if self._fleet_computed else settings.c_miss
        spread = settings.spread * c_miss * self._recent.fade(now) / (long * -expm1(age / long))
        return settings.crowding * arrivals, spread

    # --- accounting -------------------------------------------------------------------------------------------------

    def routed(self, query: Query, choice: Choice) -> Ticket:
        slot, now = choice.slot, query.now
        if slot >= len(self._replicas):
            self._grow(slot + 1)
        replica, settings = self._replicas[slot], self.settings
        held = min(query.hits.get(slot, 0.0), query.tokens)
        done_at, behind = self._done_at[slot], self._behind[slot]
        long = settings.long_queue
        if self._queued.any_at(now) and (done_at > now + long or behind > long):
            query = self._at_its_turn(query, [slot])
        c_miss, trust, per_hit, per_miss, per_work, bias = self._known[slot]
        hit = min(query.hits.get(slot, 0.0), query.tokens)
        considered = choice.considered
        work = max(done_at - now, behind) + (considered[0].foreign_work if len(considered) == 1 else self._foreign)
        found = hit * trust / 1000.0
        miss = max(query.tokens / 1000.0 - found, _LEAST_MISS)
        service = settings.c_hit * found + c_miss * miss * (1.0 + self._context.kappa * (found + miss / 2.0))
        owed = service / max(c_miss, _LEAST_C_MISS)  # in computed tokens; a hit counts by its share of their cost
        share = Share(owed, hit=found, miss=miss, seen=query.stream)
        replica.backlog.add(share, now)
        replica.arrivals += 1
        replica.routed += owed
        self._recent.add(slot, owed, now)
        self._former.sent(query.chunks, slot)
        self._queued.sent(query, slot, work)
        self._popularity.sent(query)
        self._count_arrivals(1, now)
        self._revisit(now)
        if slot != self._turn:  # that one was just published
            self._publish(slot)
        base = service + work
        correction = per_hit * found + per_miss * miss + per_work * work + bias
        ttft = max(base + correction, base * _LEAST_SHARE)
        x = (found, miss, work, 1.0)
        # Before any answer ended the estimator knows only the time to first token, which is not the latency.
        latency = max(base + replica.latency.predict(x), ttft) if any(replica.latency.weights) else None
        return Ticket(
            slot,
            now,
            query.tokens,
            hit,
            ttft,
            latency,
            Routed(replica, x, service, share, held / 1000.0 if held > hit else 0.0),
        )

    def _count_arrivals(self, arrivals: int, now: float) -> None:
        window = self.settings.arrival_seconds
        self._arrivals = self._arrivals * exp(min(self._arrived - now, 0.0) / window) + arrivals
        self._arrived = now
        self._began = min(self._began, now)

    def first_token(self, ticket: Ticket, now: float) -> None:
        state = self._current(ticket)
        if state is None or not state.share.owing:
            return
        replica, share = state.replica, state.share
        took, passed = replica.backlog.first_token(share, now)
        self._seen = replica.seen = now
        replica.backlog.doubt = 0.0
        tokens = share.tokens
        for one in passed:
            tokens += one.tokens
        replica.computed += tokens
        self._learn_speed(took, tokens)
        if self._fleet_computed > _SETTLED:
            for one in passed:
                replica.stretch.add(one.hit, one.miss, 0.0)
            self._learn_context(replica, state.x, took)
            self._learn_residual(replica, state, now, now - ticket.routed_at)
        replica.heard = now
        self._publish(ticket.slot)

    def _learn_speed(self, seconds: float, tokens: float) -> None:
        self._fleet_seconds = self._fleet_seconds * _FLEET_MEMORY + seconds
        self._fleet_computed = self._fleet_computed * _FLEET_MEMORY + tokens

    def _learn_context(self, replica: Replica, x: Features, took: float) -> None:
        """Learn from a prompt's time, scaled to the fleet's speed, so that replicas of all speeds count alike."""
        average = self._fleet_c_miss()
        replica.stretch.add(x[0], x[1], took * average / max(replica.backlog.c_miss, _LEAST_C_MISS))
        self._context.learn(replica.stretch, average)

    def _learn_residual(self, replica: Replica, state: Routed, now: float, ttft: float) -> None:
        replica.lessons = min(replica.lessons + (now - replica.heard) * _LESSONS, MOST_LESSONS)
        if replica.lessons >= 1.0:
            replica.lessons -= 1.0
            replica.ttft.update(state.x, ttft - state.service - state.x[2])

    def finished(self, ticket: Ticket, now: float, cached_tokens: float | None) -> None:
        state = self._current(ticket)
        if state is None:
            ticket.state = None
            return
        if state.share.seen:
            self.first_token(ticket, now)  # known now at the latest
        else:
            self._ended(ticket.slot, state, now)
        ticket.state = None
        replica = state.replica
        replica.answers += 1
        sampled = replica.answers % _REPORTED == 0 or replica.latency.updates < _TESTED
        if sampled and self._fleet_computed > _SETTLED:
            replica.latency.update(state.x, now - ticket.routed_at - state.service - state.x[2])
        if cached_tokens is not None and state.doubted > 0.0:
            self._queued.graded(state.doubted, cached_tokens / 1000.0)
        elif cached_tokens is not None and ticket.hit_tokens > 0.0:
            replica.graded(ticket.hit_tokens / 1000.0, cached_tokens / 1000.0)

    def _ended(self, slot: int, state: Routed, now: float) -> None:
        """Handle the end of an answer in one piece. The time of its first token is unknown.

        Without streams c_miss is the busy time, decoding included, ÷ the computed tokens, and at most the setting. That
        is too high, but a value that is too low does more harm. The whole fleet has one such c_miss: with one for each
        replica, an error would send a replica all requests or none."""
        replica, tokens = state.replica, state.share.tokens
        busy = replica.backlog.ended(state.share, now)
        self._busy_seconds = self._busy_seconds * _FLEET_MEMORY + busy
        self._busy_tokens = self._busy_tokens * _FLEET_MEMORY + tokens
        if now - replica.seen > self.settings.stale_seconds:
            replica.backlog.doubt = _DOUBT
        if now - self._seen > self.settings.stale_seconds and self._busy_tokens > _SETTLED:
            took = tokens * min(self._busy_seconds / self._busy_tokens, self.settings.c_miss)
            replica.backlog.learn(took, tokens)
            self._learn_speed(took, tokens)
        replica.heard = now
        self._publish(slot)

    def failed(self, ticket: Ticket, now: float) -> None:
        state, ticket.state = self._current(ticket), None
        if state is not None and (state.share.owing or not state.share.seen):
            state.replica.backlog.give_up(state.share, now)
            self._publish(ticket.slot)

    def _current(self, ticket: Ticket) -> Routed | None:
        """The ticket's state; None if it does not belong to the replica that has the slot now."""
        state = ticket.state
        return state if isinstance(state, Routed) and self._replicas[ticket.slot] is state.replica else None

    # --- requests of other routers (`others`) -------------------------------------------------------------------------

    def account(self, slot: int, now: float) -> Account | None:
        return self._replicas[slot].account(now) if slot < len(self._replicas) else None

    def hear(self, router: str, slot: int, account: Account | None, now: float) -> None:
        if slot >= len(self._replicas):
            self._grow(slot + 1)
        news = self._others.take(router, slot, account)
        took = self._replicas[slot].backlog.hear(news.owed, news.requests, news.computed, now)
        if took > 0.0:
            self._learn_speed(took, news.computed)
        if news.arrivals:
            self._recent.add(slot, news.routed, now)
            self._count_arrivals(news.arrivals, now)
        self._publish(slot)

    # --- state that routers share (`learned`) ------------------------------------------------------------------------

    def learned(self, slot: int) -> Learned | None:
        """What this router learned from its own outcomes; None while they are too few."""
        replica = self._replicas[slot] if slot < len(self._replicas) else None
        if replica is None or replica.ttft.updates - replica.adopted < _TESTED or replica.backlog.computed <= 0.0:
            return None
        ttft, latency, backlog = replica.ttft, replica.latency, replica.backlog
        updates = min(ttft.updates - replica.adopted, MOST_UPDATES)
        return Learned(max(backlog.c_miss, _LEAST_C_MISS), backlog.computed, ttft.weights, latency.weights, updates)

    def adopt(self, slot: int, learned: Learned, now: float) -> bool:
        """Start from what other routers learned, if nothing was learned here."""
        if slot >= len(self._replicas):
            self._grow(slot + 1)
        replica = self._replicas[slot]
        if replica.ttft.updates or replica.computed or learned.updates < _TESTED:
            return False
        self._fleet_seconds += learned.c_miss * learned.experience
        self._fleet_computed += learned.experience
        replica.backlog.start_from(learned.c_miss, learned.experience, self._fleet_c_miss())
        replica.ttft.weights, replica.latency.weights = learned.ttft, learned.latency
        replica.adopted = replica.ttft.updates = replica.latency.updates = min(learned.updates, MOST_UPDATES)
        replica.heard = now
        self._publish(slot)
        return True

    # --- slots ------------------------------------------------------------------------------------------------------

    def forget(self, slot: int) -> None:
        if slot < len(self._replicas):
            self._replicas[slot] = self._new_replica()
            self._recent.clear(slot)
            self._former.forget(slot)
            self._queued.forget(slot)
            self._others.forget(slot)
            self._publish(slot)

    def _grow(self, slots: int) -> None:
        self._recent.grow(slots)
        while len(self._replicas) < slots:
            self._replicas.append(self._new_replica())
            self._done_at.append(0.0)
            self._behind.append(0.0)
            self._known.append((0.0,) * 6)
            self._publish(len(self._replicas) - 1)

    def _new_replica(self) -> Replica:
        """A replica with the fleet's prior, and with the variance of a new regression."""
        return Replica(
            Backlog(self._fleet_c_miss()),
            self._regression([replica.ttft for replica in self._replicas]),
            self._regression([replica.latency for replica in self._replicas]),
        )

    def _regression(self, peers: Sequence[RecursiveLeastSquares]) -> RecursiveLeastSquares:
        variance = self.settings.initial_variance
        return RecursiveLeastSquares(
            forgetting=self.settings.forgetting,
            initial_variance=variance,
            trace_limit=40.0 * variance,
            weights=_mean_weights(peers),
        )

    def _fleet_c_miss(self) -> float:
        """The recent seconds per thousand computed tokens, over all replicas; before any outcome, the setting."""
        return self._fleet_seconds / self._fleet_computed if self._fleet_computed else self.settings.c_miss

    def _revisit(self, now: float) -> None:
        """Give one slot per request the fleet's current prior, and fade its estimates after a long time without
        outcomes.

        Otherwise a replica that was never chosen keeps an old prior, and is never chosen."""
        self._turn = (self._turn + 1) % len(self._replicas)
        replica = self._replicas[self._turn]
        replica.backlog.expect(self._fleet_c_miss())
        if not replica.backlog.requests and now - replica.heard > self.settings.stale_seconds:
            replica.heard = now
            replica.fade()
            replica.ttft.weights = _between(replica.ttft.weights, _mean_weights([peer.ttft for peer in self._replicas]))
        self._publish(self._turn)

    def _publish(self, slot: int) -> None:
        replica = self._replicas[slot]
        backlog = replica.backlog
        self._done_at[slot], self._behind[slot] = backlog.bounds()
        self._known[slot] = (backlog.c_miss, replica.trust, *replica.ttft.weights)


def _mean_weights(peers: Sequence[RecursiveLeastSquares]) -> Features:
    tested = [peer.weights for peer in peers if peer.updates >= _TESTED]
    if not tested:
        return (0.0, 0.0, 0.0, 0.0)
    first, second, third, fourth = (sum(column) / len(tested) for column in zip(*tested, strict=True))
    return first, second, third, fourth


def _between(one: Features, other: Features) -> Features:
    first, second, third, fourth = ((a + b) / 2.0 for a, b in zip(one, other, strict=True))
    return first, second, third, fourth
