"""What a request says: parse → check → render → hash, for everything that depends on the request alone.

A retry decides again without reading again. Nothing is tokenized: the prompt stays bytes, and its chain of byte chunks
is what the directory is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from plumage.hashing.chunks import ChainMemory, seed
from plumage.rendering.errors import RenderLimitError, TemplateError
from plumage_router.body import parse_steps, splice
from plumage_router.errors import bad_field, bad_request, unknown_model
from plumage_router.fields import (
    CHAT,
    COMPLETION,
    Check,
    Messages,
    check_fields,
    check_messages,
    check_prompt,
    check_stream_options,
    check_template_options,
    is_followed,
)
from plumage_router.pieces import Steps, at_once
from plumage_router.sizes import MOST_RENDERED, shown_bytes, text_lengths
from plumage_router.token_rate import LOOKED_AT
from plumage_router.usage import Wanted

__all__ = ["CHAT_PATH", "COMPLETION_PATH", "Prompt", "PromptReader", "Renderer"]

CHAT_PATH = b"/v1/chat/completions"
COMPLETION_PATH = b"/v1/completions"
KEPT_SEEDS = 4096  # one for each adapter and tenant
USUAL_ANSWER = 16  # tokens of an answer whose length nobody asked for, at least
USUAL_TOKEN = 4  # bytes, to guess by
CUT_TOKEN = 8  # characters a token of the context, of a prompt that is cut: twice what it usually holds
UNKNOWN_CONTEXT = 131_072  # tokens, where the model does not tell


class Renderer(Protocol):
    """Turns a request into the bytes the engine will tokenize (`plumage.rendering.ChatRenderer`)."""

    def render_chat(self, body: Mapping[str, Any]) -> bytes: ...

    def render_completion(self, prompt: str | Sequence[int], add_special_tokens: bool = True) -> bytes: ...


@dataclass(slots=True)
class Prompt:
    """A request, read and found good. `payload` goes to the engine. `stream`, `wanted_usage`: what the client asked.
    `plain`: one prompt, all of it text, so that the engine counts the tokens of `text` and no others. Of a prompt that
    the engine cuts `text` is about what is left, and there are no `chunks`: its beginning is gone. `size`: of `text` in
    bytes, which `forget` cuts to its end once an answer began. `digest`: of `payload`, once it was asked for."""

    path: bytes
    model: str
    payload: bytes
    stream: bool
    wanted_usage: Wanted
    text: bytes
    chunks: Sequence[int]
    plain: bool = True
    digest: bytes | None = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.text)

    def forget(self) -> None:
        """No other replica will be tried: keeps of the request only what its answer is accounted with."""
        self.payload, self.text = b"", self.text[-LOOKED_AT:]


class PromptReader:
    """What a request says, given the model behind this router. `context`: the pool's longest prompt in tokens;
    `longest_token`: bytes of its longest token, which make a refusal by size certain instead of guessed. `fallbacks`:
    the renderer's own count of conversations that it could not go on with, by what went wrong. `passed`: fields that
    the pool lets pass though they are forbidden or unknown."""

    def __init__(
        self,
        renderer: Renderer,
        model: str,
        *,
        aliases: Sequence[str] = (),
        adapters: Sequence[str] = (),
        context: int | None = None,
        longest_token: int = 0,
        allow_media: bool = False,
        fallbacks: Mapping[str, int] | None = None,
    ) -> None:
        self.fallbacks: Mapping[str, int] = {} if fallbacks is None else fallbacks
        self.passed: frozenset[str] = frozenset()
        self._renderer = renderer
        self._model = model
        self._served = {model: "", **dict.fromkeys(aliases, ""), **{name: name for name in adapters}}
        self._aliases = frozenset(aliases)
        self._context = context
        self._longest_token = longest_token
        self._allow_media = allow_media
        self._seeds: dict[tuple[str, str], int] = {}
        self._chains = ChainMemory()

    def read(
        self,
        path: bytes,
        raw: bytes,
        body: Mapping[str, Any] | None = None,
        *,
        salt: str = "",
        tenant: bool = False,
    ) -> Prompt:
        """The request in `raw`, or RequestError. `body`: what it parses to, where that was done. `tenant`: keys are in
        use, so `salt` is set for the client."""
        return at_once(self.steps(path, raw, body, salt=salt, tenant=tenant))

    def steps(
        self,
        path: bytes,
        raw: bytes,
        body: Mapping[str, Any] | None = None,
        *,
        salt: str = "",
        tenant: bool = False,
    ) -> Steps[Prompt]:
        """`read` in pieces."""
        if body is None:
            body = yield from parse_steps(raw)
            yield
        plain, followed = self._checked(path, body, tenant)
        yield
        text = self.render(path, body, len(raw))
        yield
        own_salt = salt or body.get("cache_salt") or ""
        kept = self._kept(body) if _is_cut(body) else None
        if not followed or (kept is not None and _size(body, text) > kept):
            chunks = []
        else:
            chunks = self.chain(text, body["model"], own_salt)
        if kept is not None:
            text = text[-USUAL_TOKEN * max(1, kept) :]
        yield
        return Prompt(
            path,
            body["model"],
            self._payload(raw, body, salt),
            body.get("stream") is True,
            _wanted_usage(body.get("stream_options")),
            text,
            chunks,
            plain and followed,
        )

    def check(self, path: bytes, body: Mapping[str, Any], *, tenant: bool = False) -> bool:
        """Every rule that needs no rendering. True for one prompt that is nothing but text, and all of it."""
        return self._checked(path, body, tenant)[0]

    def _checked(self, path: bytes, body: Mapping[str, Any], tenant: bool) -> tuple[bool, bool]:
        """`check`, and whether the router can tell which bytes the engine computes."""
        known: Mapping[str, Check] = CHAT if path == CHAT_PATH else COMPLETION
        check_fields(body, known, self.passed)
        name = body.get("model")
        if name is None:
            raise bad_field("model", "it is missing.", code="missing_field")
        if name not in self._served:
            raise unknown_model(name[:128], self._model)
        if tenant and body.get("cache_salt") is not None:
            raise bad_field("cache_salt", "the router sets it for each tenant.", code="field_not_allowed")
        check_stream_options(body.get("stream_options"))
        if path == CHAT_PATH:
            check_template_options(body.get("chat_template_kwargs"))
            messages = check_messages(body.get("messages"), allow_media=self._allow_media)
        else:
            check_prompt(body.get("prompt"))
            messages = Messages(plain=isinstance(body["prompt"], str), known=True)
        plain = messages.plain and not _is_cut(body)
        return plain, messages.known and is_followed(body, known)

    def render(self, path: bytes, body: Mapping[str, Any], size: int = 0) -> bytes:
        """The prompt's bytes as the engine will see them; of several prompts the first. Empty where rendering would
        cost too much here: the request is then routed without knowledge of caches. size: of the whole body."""
        self._check_length(body, size)
        if size > MOST_RENDERED and shown_bytes(body, size) > MOST_RENDERED:
            return b""
        try:
            text = self._renderer.render_chat(body) if path == CHAT_PATH else self._render_prompt(body)
        except TemplateError as error:
            raise bad_request(f"The model's chat template refuses these messages: {_brief(error)}.") from None
        except RenderLimitError:
            return b""
        most = (self._context or 0) * self._longest_token
        if most and len(text) > most and not _is_cut(body):
            self._refuse_length()
        return text if len(text) <= MOST_RENDERED else b""

    def _check_length(self, body: Mapping[str, Any], size: int) -> None:
        """Refuses what is too long whatever the template makes of it. Of a prompt that the engine is told to cut, it
        would still tokenize all, so that may be no longer than the context by far."""
        cut = _is_cut(body)
        if not cut and size <= MOST_RENDERED:
            return  # the rendered prompt tells
        most = (self._context or UNKNOWN_CONTEXT) * (CUT_TOKEN if cut else self._longest_token)
        if most and any(length > most for length in text_lengths(body)):
            self._refuse_length()

    def _kept(self, body: Mapping[str, Any]) -> int:
        """The prompt's last tokens that the engine keeps, at least; −1 is what fits beside the answer."""
        asked: int = body["truncate_prompt_tokens"]
        if asked >= 0:
            return asked
        answer = body.get("max_completion_tokens") or body.get("max_tokens") or USUAL_ANSWER
        return max(0, (self._context or 0) - answer)

    def chain(self, text: bytes, model: str, salt: str) -> list[int]:
        """The byte-chunk chain of a rendered prompt."""
        adapter = self._served[model]
        start = self._seeds.get((adapter, salt))
        if start is None:
            start = seed(self._model, adapter, salt)
            if len(self._seeds) < KEPT_SEEDS:
                self._seeds[adapter, salt] = start
        return self._chains.chain(text, start)

    def _render_prompt(self, body: Mapping[str, Any]) -> bytes:
        prompt = body["prompt"]
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if self._context and isinstance(prompt, list) and len(prompt) > self._context and not _is_cut(body):
            self._refuse_length()
        return self._renderer.render_completion(prompt, body.get("add_special_tokens") is not False)

    def _refuse_length(self) -> None:
        message = f"The prompt is longer than this pool's context of {self._context} tokens."
        if self._context is None:
            message = "The prompt is too long."
        raise bad_request(message, code="context_length_exceeded")

    def _payload(self, raw: bytes, body: Mapping[str, Any], salt: str) -> bytes:
        """The body for the engine: the base model's name for an alias, the tenant's salt, and usage in streams."""
        changes: dict[str, Any] = {}
        if body["model"] in self._aliases:
            changes["model"] = self._model
        if salt:
            changes["cache_salt"] = salt
        if body.get("stream") is True and (options := _stream_options(body.get("stream_options"))) is not None:
            changes["stream_options"] = options
        if not changes:
            return raw
        return splice(raw, changes) if changes.keys().isdisjoint(body) else orjson.dumps({**body, **changes})


def _is_cut(body: Mapping[str, Any]) -> bool:
    """Is the engine told to cut the prompt?"""
    return body.get("truncate_prompt_tokens") is not None


def _wanted_usage(options: Mapping[str, Any] | None) -> Wanted:
    if not options or options.get("include_usage") is not True:
        return Wanted.NONE
    return Wanted.EVERY if options.get("continuous_usage_stats") is True else Wanted.LAST


def _stream_options(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The client's own with usage at the end; None where they ask for it. Without `include_usage` an engine ignores
    `continuous_usage_stats`, so what is added must not switch it on."""
    if _wanted_usage(options) is not Wanted.NONE:
        return None
    kept = {name: value for name, value in (options or {}).items() if name != "continuous_usage_stats"}
    return {**kept, "include_usage": True}


def _size(body: Mapping[str, Any], text: bytes) -> int:
    """Tokens of the prompt, at most: each is a byte or more, but for a space that some tokenizers put before a text."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        prompt = prompt[0]
    return len(prompt) if isinstance(prompt, list) else len(text) + 1


def _brief(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:200] or type(error).__name__
