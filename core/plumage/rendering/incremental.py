"""A chat template that renders only what is new in a conversation.

A client sends the whole conversation each time. Nearly all templates print a head, then loop over the messages, then
print a tail. The loop is instrumented in the syntax tree: each turn of it tells how much is printed, how far the
messages have been read (`watched`) and what the namespaces hold. Text printed before such a mark depends only on the
messages read by then and on the variables that the loop started from. The next request of the same conversation runs
the head, skips the turns that are known, takes their text and namespaces from its transcript, and runs the rest.

This is exact, not a guess about the template: whatever it reads is counted. A template that puts the number of messages
into a variable before its loop, say, shares text among conversations of that number only. Where the bookkeeping can't
follow (a value that is no plain data, an error on the way), the plain template has the word.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jinja2 import Template, Undefined, nodes
from jinja2.runtime import Context, LoopContext, Macro

from plumage.rendering.environment import ChatEnvironment, ChatNamespace, attributes_of
from plumage.rendering.transcripts import Known, Mark, Transcript, TranscriptCache, as_said
from plumage.rendering.watched import EVERYTHING, Reach, Walk, WatchedMessages

__all__ = ["Conversation", "IncrementalTemplate", "instrumented"]

_RECORDER, _WALK, _ENTER = "_plumage_recorder", "_plumage_walk", "_plumage_enter"
_OTHER_TEMPLATES = (nodes.Block, nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)
_STATEFUL_NAMES = frozenset(("cycler", "joiner", "lipsum", "strftime_now"))
_STATEFUL_ATTRIBUTES = frozenset(("changed", "cycle"))
_LATE = 3  # a question, an answer, a question: what the next request usually adds
_PATIENCE = 16
_PAUSE = 1000
"""Requests. Some templates look at the end of the list before their loop: nothing of theirs can be used again."""
_MISSING = object()
_ATOMS = frozenset((str, int, bool, float, type(None)))


@dataclass(frozen=True, slots=True)
class Conversation:
    """One request's messages: as the client sent them, as the template sees them, and what is known of them."""

    given: Sequence[Any]
    messages: list[dict[str, Any]]
    known: Known | None


class _Turn(NamedTuple):
    """A mark as it is met: `printed` counts pieces of output, not characters."""

    turn: int
    printed: int
    reach: int
    namespaces: tuple[dict[str, Any], ...]


class IncrementalTemplate:
    """`render` equals the plain template's; use one instance for all requests of a model.

    every: turns from one mark to the next, and the fewest new ones for which a conversation is written down again.
    """

    def __init__(
        self,
        environment: ChatEnvironment,
        template: Template,
        names: Iterable[str],
        cache: TranscriptCache,
        every: int,
    ) -> None:
        self._environment = environment
        self._template = template
        self._names = tuple(sorted(names))
        self._cache = cache
        self._every = every
        self.resumed = 0  # conversations that were gone on with
        self._balance = 0
        self._pause = 0

    def pays(self) -> bool:
        """False for a while after conversations were recognised often, but none of their text could be used."""
        if self._pause:
            self._pause -= 1
        return not self._pause

    def _account(self, conversation: Conversation, resumed: bool) -> None:
        self.resumed += resumed
        if conversation.known is not None:
            self._balance = min(self._balance + 1, 0) if resumed else self._balance - 1
            if self._balance < -_PATIENCE:
                self._balance, self._pause = 0, _PAUSE

    def render(self, variables: Mapping[str, Any], conversation: Conversation, limit: int) -> str | None:
        """None if the output passes `limit` characters. Raises what the template raises."""
        recorder = _Recorder(self._names, conversation, self._every)
        messages = WatchedMessages(conversation.messages, recorder.reach)
        given = {**variables, "messages": messages, _RECORDER: recorder}
        recorder.context, pieces = self._environment.run(self._template, given)
        printed = recorder.printed
        size = 0
        for piece in pieces:
            printed.append(piece)
            size += len(piece)
            if size > limit:
                return None
        recorder.learn(self._cache)
        self._account(conversation, recorder.resumed >= 0)
        return recorder.text()


def instrumented(
    environment: ChatEnvironment, tree: nodes.Template, cache: TranscriptCache, every: int
) -> IncrementalTemplate | None:
    """The template of `tree`, which is changed; None if it has no loop to resume or keeps state out of sight."""
    if any(tree.find(kind) is not None for kind in _OTHER_TEMPLATES) or _has_hidden_state(tree):
        return None
    names = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"}
    loops = [loop for loop in _outer_loops(tree.body) if loop.test is None and not loop.recursive]
    if not loops:
        return None
    environment.filters[_WALK] = _walk
    environment.tests[_ENTER] = _enter
    for identity, loop in enumerate(loops):
        _instrument(loop, identity)
    tree.set_environment(environment)
    return IncrementalTemplate(environment, environment.compile_tree(tree), names, cache, every)


def _has_hidden_state(tree: nodes.Template) -> bool:
    """Things whose value depends on when or how often they were asked."""
    parts = [*tree.find_all(nodes.For), *tree.find_all(nodes.Macro), *tree.find_all(nodes.CallBlock)]
    named = any(node.name in _STATEFUL_NAMES for part in parts for node in part.find_all(nodes.Name))
    asked = any(node.attr in _STATEFUL_ATTRIBUTES for node in tree.find_all(nodes.Getattr))
    return named or asked or any(node.name == "random" for node in tree.find_all(nodes.Filter))


def _outer_loops(statements: Iterable[nodes.Node]) -> Iterable[nodes.For]:
    """Loops whose output goes straight to the template's: at the top, or in branches there."""
    for statement in statements:
        if isinstance(statement, nodes.For):
            yield statement
        elif isinstance(statement, nodes.If):
            yield from _outer_loops([*statement.body, *statement.elif_, *statement.else_])


def _instrument(loop: nodes.For, identity: int) -> None:
    """`for m in messages` walks under the recorder's eyes, and asks it at each turn whether to run the body."""
    uses_loop = any(node.name == "loop" for part in loop.body for node in _names_in(part))
    recorder = nodes.Name(_RECORDER, "load")
    position = nodes.Name("loop", "load") if uses_loop else nodes.Const(None)
    identifier = nodes.Const(identity)
    loop.iter = nodes.Filter(loop.iter, _WALK, [recorder, identifier], [], None, None)
    entered = nodes.Test(recorder, _ENTER, [identifier, position], [], None, None)
    loop.body = [nodes.If(entered, loop.body, [], [])]
    loop.set_lineno(loop.lineno)


def _names_in(node: nodes.Node) -> Iterable[nodes.Name]:
    if isinstance(node, nodes.Name):
        yield node
    yield from node.find_all(nodes.Name)


def _walk(iterable: Any, recorder: _Recorder, identity: int) -> Any:
    return recorder.walk(iterable, identity) if type(iterable) is WatchedMessages else iterable


def _enter(recorder: _Recorder, identity: int, loop: LoopContext | None) -> bool:
    return recorder.active != identity or recorder.enter(loop)


class _Recorder:
    """What is known and learned of one request while its template runs."""

    __slots__ = (
        "_conversation", "_every", "_head", "_late", "_names", "_namespaces", "_offset", "_root", "_skip_to",
        "_turns", "_walk", "active", "context", "printed", "reach", "resumed",
    )  # fmt: skip

    def __init__(self, names: tuple[str, ...], conversation: Conversation, every: int) -> None:
        self.reach = Reach()
        self.printed: list[str] = []
        self.active = -1  # the loop that is recorded: the first one over the messages
        self.context: Context
        self._names = names
        self._conversation = conversation
        self._every = every  # turns from one mark to the next; the last ones of a conversation get a mark each
        self._late = 0
        self._walk: Walk
        self._offset = 0
        self._root = b""
        self.resumed = -1  # the mark of the known transcript to go on from
        self._skip_to = 0  # the loop item of that mark
        self._head = 0  # pieces printed before the loop
        self._namespaces: list[ChatNamespace] = []
        self._turns: list[_Turn] = []

    def walk(self, messages: WatchedMessages, identity: int) -> WatchedMessages | Walk:
        """Called as a loop starts. What was read before shows in the variables only, which are the root."""
        if self._root:
            return messages
        try:
            self._root = marshal.dumps((identity, messages.offset, *self._variables()), 0)
        except ValueError:  # something that is no plain data
            return messages
        self.active = identity
        self._offset = messages.offset
        self._late = len(self._conversation.messages) - messages.offset - _LATE
        self._head = len(self.printed)
        self._find_mark()
        self.reach.last = -1
        self._walk = Walk(messages)
        return self._walk

    def _find_mark(self) -> None:
        known = self._conversation.known
        if known is not None:
            self.resumed = known.last_mark(self._root)
            if self.resumed >= 0:
                self._skip_to = known.transcript.marks[self.resumed].turn

    def _variables(self) -> list[Any]:
        """The values of all names in the template; what is no plain data is described instead."""
        own, given = self.context.vars, self.context.parent
        values: list[Any] = []
        described: list[tuple[str, str, Any]] = []
        for name in self._names:
            value: Any = own[name] if name in own else given.get(name, _MISSING)
            if type(value) not in _ATOMS and (description := self._described(name, value)) is not None:
                described.append((name, *description))
                value = None
            values.append(value)
        return [values, described]

    def _described(self, name: str, value: Any) -> tuple[str, Any] | None:
        kind = type(value)
        if kind is ChatNamespace:
            same = next((i for i, known in enumerate(self._namespaces) if known is value), len(self._namespaces))
            self._namespaces.append(value)
            return f"namespace {same}", attributes_of(value)
        if kind is WatchedMessages:
            return "messages", value.offset
        if kind is Undefined or value is _MISSING:
            return "undefined", None
        if kind is Macro or self.context.environment.globals.get(name) is value:
            return "code", None
        return None

    def enter(self, loop: LoopContext | None) -> bool:
        """Whether this turn of the loop is to run."""
        index = self._walk.position - self._offset - 1 if loop is None else loop.index0
        if index < self._skip_to:
            self._skip(loop, index)
            return False
        if index == 0:
            return True
        if index == self._skip_to:
            self._resume()
        elif (index >= self._late or index % self._every == 0) and self.reach.last < EVERYTHING:
            self._mark(index)
        return True

    def _mark(self, index: int) -> None:
        held = tuple(dict(attributes_of(namespace)) for namespace in self._namespaces)
        if all(map(_is_plain, held)):
            self._turns.append(_Turn(index, len(self.printed), self.reach.last, held))

    def _skip(self, loop: LoopContext | None, index: int) -> None:
        """Let the next turn be the one to resume at."""
        if loop is None:
            self._walk.position = self._skip_to + self._offset
            return
        for _ in range(self._skip_to - index - 1):
            next(loop)

    def _resume(self) -> None:
        mark = self._marks_before()[-1]
        self.reach.last = mark.reach
        for namespace, held in zip(self._namespaces, mark.namespaces, strict=True):
            attributes = attributes_of(namespace)
            attributes.clear()
            attributes.update(held)

    def _marks_before(self) -> Sequence[Mark]:
        known = self._conversation.known
        return () if known is None else known.transcript.marks[: self.resumed + 1]

    def _text_before(self) -> str:
        known = self._conversation.known
        if known is None or self.resumed < 0:
            return ""
        return known.transcript.text[: known.transcript.marks[self.resumed].at]

    def text(self) -> str:
        """The whole prompt."""
        before = self._text_before()
        if not before:
            return "".join(self.printed)
        return "".join([*self.printed[: self._head], before, *self.printed[self._head :]])

    def learn(self, cache: TranscriptCache) -> None:
        """Keep what the next turn of this conversation will skip."""
        turns = self._turns
        if not turns or turns[-1].turn - self._skip_to < self._every:
            return
        text = [self._text_before()]
        marks = [*self._marks_before()]
        at, since = len(text[0]), self._head
        for turn in turns:
            text.append("".join(self.printed[since : turn.printed]))
            at, since = at + len(text[-1]), turn.printed
            marks.append(Mark(turn.turn, at, turn.reach, turn.namespaces))
        self._keep("".join(text), marks, cache)

    def _keep(self, text: str, marks: list[Mark], cache: TranscriptCache) -> None:
        conversation, known = self._conversation, self._conversation.known
        said = [] if known is None else [*known.transcript.said[: known.common]]
        said += map(as_said, conversation.given[len(said) :])
        root = known.transcript.root if known is not None and known.transcript.root == self._root else self._root
        extends = known.transcript if known is not None and known.common == len(known.transcript.said) else None
        cache.keep(Transcript(said, conversation.messages, root, text, marks), conversation.given, extends)


def _is_plain(attributes: dict[str, Any]) -> bool:
    """Data only: a held value must not lead back to this request's messages, nor be used up by reading."""
    if all(type(value) in _ATOMS for value in attributes.values()):
        return True
    try:
        marshal.dumps(attributes, 0)
    except ValueError:
        return False
    return True
