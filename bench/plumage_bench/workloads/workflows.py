"""Sessions of agent workflows: several agents, tools with pauses, and system prompts that a workflow's sessions share.

The forms come from public descriptions. Their lengths and times are Plumage's, within what those describe; they were
frozen before any mechanism ran on them.

- A workflow has a lead and sub-agents. Each has a fixed system prompt of its own, and a graph of what follows what
  (KVFlow, arXiv 2507.07400, §2: agents of fixed prompts, an agent step graph).
- An answer ends in a tool call. Its result comes after milliseconds to tens of seconds, by tool, and the next prompt
  appends it (Continuum, arXiv 2511.02230: SWE-Bench and BFCL agents; InferCept, arXiv 2402.01869, Table 1).
- A lead's call of a sub-agent starts another prompt; the lead waits for its last answer, which is the result.
- After the lead's last answer the user continues half of the sessions, after a pause of minutes. A sub-agent's prompt
  is never continued after its last answer.

Each agent has tools of its own. A tool's pauses are log-normal around its median, between 1 and 60 s. The medians are
log-uniform over that range. The tool after a tool is drawn from the agent's graph: mostly one, sometimes another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from typing import Final

from plumage_bench.workloads.arrivals import Arrival
from plumage_bench.workloads.prompts import BlockNames, Prompt

__all__ = ["Call", "WorkflowSessions", "WorkflowShape"]

LEAST_PAUSE: Final = 1.0
MOST_PAUSE: Final = 60.0
_DELAY: Final = 0.2  # seconds between a lead's answer and its sub-agent's first call, and back


@dataclass(frozen=True, slots=True)
class WorkflowShape:
    """workflows: kinds, drawn by Zipf's law. agents: of each, the lead included. system: tokens of a system prompt, its
    instructions and tools. tools: of an agent. usual: share of the calls after which the agent's usual tool follows.
    delegated: share of a lead's turns that call a sub-agent. turns, sub_turns: calls of a lead and of a sub-agent.
    task, result, answer: mean tokens. spread: of a tool's pauses (σ of the log). returning: share of the leads' last
    answers that the user continues, after `think` seconds in the median. seconds: in which sessions start, `rate` a
    second."""

    rate: float
    seconds: float
    workflows: int = 12
    agents: int = 4
    system: tuple[int, int] = (2000, 6000)
    tools: int = 5
    usual: float = 0.7
    delegated: float = 0.25
    turns: tuple[int, int] = (4, 10)
    sub_turns: tuple[int, int] = (2, 5)
    task: float = 400.0
    result: float = 800.0
    answer: float = 120.0
    spread: float = 0.4
    returning: float = 0.5
    think: float = 90.0
    block_size: int = 16


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a session. delay: seconds after the answer before it. agent: names its system prompt, whose full
    blocks are `system`. tool: that its answer calls; empty for a last answer. What a server sees of it is all but
    `delay`."""

    prompt: Prompt
    delay: float
    agent: str
    system: Sequence[int]
    tool: str


@dataclass(frozen=True, slots=True)
class _Agent:
    name: str
    tokens: int
    blocks: Sequence[int]
    medians: Sequence[float]  # seconds, of its tools
    follows: Sequence[int]  # the usual tool after each


class WorkflowSessions:
    """A source of a fleet: sessions start at Poisson times. client: the session's number. `calls` has each session's
    calls in order, `place` the index of its present call."""

    def __init__(self, shape: WorkflowShape, seed: int) -> None:
        self._shape = shape
        self._rng = random.Random(f"workflows-{seed}")
        self._names = BlockNames(self._rng, shape.block_size)
        self._workflows = [
            [self._agent(f"{number}.{agent}") for agent in range(shape.agents)] for number in range(shape.workflows)
        ]
        self._starts = self._draw_starts()
        weights = [1.0 / (rank + 1) for rank in range(shape.workflows)]
        drawn = self._rng.choices(range(shape.workflows), weights, k=len(self._starts))
        self.calls = [list(self._session(self._workflows[kind], number)) for number, kind in enumerate(drawn)]
        self.place = [0] * len(self.calls)

    def initial(self) -> Iterator[Arrival]:
        for session, at in enumerate(self._starts):
            yield Arrival(at, self.calls[session][0].prompt, session)

    def after(self, client: int, now: float) -> Arrival | None:
        self.place[client] += 1
        if self.place[client] == len(self.calls[client]):
            return None
        call = self.calls[client][self.place[client]]
        return Arrival(now + call.delay, call.prompt, client)

    def __len__(self) -> int:
        return sum(len(calls) for calls in self.calls)

    def until_continued(self, client: int) -> float:
        """The seconds of pauses until a later call of the session continues its present prompt; infinity if none
        does. The calls between are not counted."""
        place, calls = self.place[client], self.calls[client]
        now, seconds = calls[place], 0.0
        for call in calls[place + 1 :]:
            seconds += call.delay
            if call.agent == now.agent and call.prompt.blocks[: len(now.prompt.blocks)] == now.prompt.blocks:
                return seconds
        return inf

    def _draw_starts(self) -> list[float]:
        starts, now = [], 0.0
        while (now := now + self._rng.expovariate(self._shape.rate)) < self._shape.seconds:
            starts.append(now)
        return starts

    def _agent(self, name: str) -> _Agent:
        shape, rng = self._shape, self._rng
        tokens = rng.randint(*shape.system)
        medians = [exp(rng.uniform(log(LEAST_PAUSE), log(MOST_PAUSE))) for _ in range(shape.tools)]
        follows = [rng.randrange(shape.tools) for _ in range(shape.tools)]
        return _Agent(name, tokens, self._names.stretch(tokens), medians, follows)

    def _session(self, agents: Sequence[_Agent], number: int) -> Iterator[Call]:
        """The lead's calls, with those of its sub-agents between them, in the order of time."""
        shape, rng = self._shape, self._rng
        lead, subs = agents[0], agents[1:]
        delay, history = 0.0, _History(lead, self._names, number)
        while True:
            left, tool = rng.randint(*shape.turns), rng.randrange(shape.tools)
            added = self._length(shape.task)
            for turn in range(left):
                last = turn == left - 1
                sub = rng.choice(subs) if subs and not last and rng.random() < shape.delegated else None
                named = "" if last else f"task {sub.name}" if sub else f"tool {tool}"
                yield history.call(added, self._length(shape.answer), delay, named)
                if last:
                    break
                if sub is None:
                    delay, added = self._pause(lead.medians[tool]), self._length(shape.result)
                else:
                    yield from self._sub_agent(sub, number)
                    delay, added = _DELAY, self._length(shape.result)
                tool = self._next_tool(lead, tool)
            if rng.random() >= shape.returning:
                return
            delay = rng.lognormvariate(log(shape.think), 0.5)

    def _sub_agent(self, agent: _Agent, number: int) -> Iterator[Call]:
        shape, rng = self._shape, self._rng
        history, delay, added = _History(agent, self._names, number), _DELAY, self._length(shape.task)
        count, tool = rng.randint(*shape.sub_turns), rng.randrange(shape.tools)
        for turn in range(count):
            yield history.call(added, self._length(shape.answer), delay, "" if turn == count - 1 else f"tool {tool}")
            delay, added = self._pause(agent.medians[tool]), self._length(shape.result)
            tool = self._next_tool(agent, tool)

    def _next_tool(self, agent: _Agent, tool: int) -> int:
        usual = self._rng.random() < self._shape.usual
        return agent.follows[tool] if usual else self._rng.randrange(self._shape.tools)

    def _pause(self, median: float) -> float:
        pause = self._rng.lognormvariate(log(median), self._shape.spread)
        return min(max(pause, LEAST_PAUSE), MOST_PAUSE)

    def _length(self, mean: float) -> int:
        """Log-normal, with this mean."""
        return max(1, round(self._rng.lognormvariate(log(mean) - 0.5 * 0.7**2, 0.7)))


class _History:
    """One agent's conversation in a session."""

    def __init__(self, agent: _Agent, names: BlockNames, number: int) -> None:
        self._agent, self._names, self._number = agent, names, number
        self._tokens, self._known = agent.tokens, agent.blocks

    def call(self, added: int, answer: int, delay: float, tool: str) -> Call:
        self._tokens += added
        blocks = self._names.extend(self._known, self._tokens)
        prompt_tokens, self._tokens = self._tokens, self._tokens + answer
        self._known = self._names.extend(blocks, self._tokens)
        prompt = Prompt(prompt_tokens, blocks, answer, self._number, self._known[len(blocks) :])
        return Call(prompt, delay, self._agent.name, self._agent.blocks, tool)
