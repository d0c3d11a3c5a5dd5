"""Reads a completion request: parse → check → render → hash.

The result depends on the request alone, so a retry does not read it again. Nothing is tokenized: the prompt stays
bytes, and the router looks up its chain of byte chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

import orjson
import xxhash

from plumage.hashing.chunks import ChainMemory, seed
from plumage.rendering.conversion import AsChat, content_count
from plumage.rendering.errors import RenderLimitError, RequestShapeError, TemplateError
from plumage.rendering.responses import responses_as_chat
from plumage_router.http.body_memory import BodyBuffer
from plumage_router.http.errors import RequestError, bad_field, bad_request, unknown_model
from plumage_router.http.paths import (
    CHAT_PATH,
    COMPLETION_PATH,
    COUNT_TOKENS_PATH,
    MESSAGES_PATH,
    RESPONSES_PATH,
    WITHOUT_DEVICE,
    ResponseCall,
)
from plumage_router.http.request import Request
from plumage_router.http.time_slicing import Steps, run_now
from plumage_router.request.audio import (
    Form,
    audio_payload,
    audio_tokens,
    check_audio,
    is_true,
    read_form,
    usage_of_stream,
)
from plumage_router.request.body import check_media_type, most_values, parse_steps, splice, splice_json
from plumage_router.request.fields import (
    CHAT,
    COMPLETION,
    MAX_MESSAGES,
    MAX_PARTS,
    MESSAGES,
    RESPONSES,
    Check,
    Messages,
    check_fields,
    check_messages,
    check_prompt,
    check_stream_options,
    check_template_options,
    is_predictable,
)
from plumage_router.request.pass_through import PASSED, SALTED, check_passed
from plumage_router.request.text_sizes import MAX_RENDERED, printable_bytes, text_lengths
from plumage_router.request.tools import sorted_tools
from plumage_router.request.turns import Turn, turn_of
from plumage_router.request.usage import ASKS_FOR_USAGE, WantedUsage, stream_options, wanted_usage

__all__ = ["SAMPLE", "Prompt", "PromptReader", "Renderer"]

SAMPLE: Final = 2048  # bytes at the end of a prompt; its beginning was counted with earlier requests

_UNCOUNTED = (
    "this field may not be sent with API keys: the engine goes on without the client, so its tokens would count in no "
    "quota. A pool allows it by router.allowedRequestFields."
)
_MAX_SEEDS = 4096  # one for each adapter and tenant
_ANSWER_TOKENS: Final = 256  # taken from a quota for an answer without a limit
_DEFAULT_ANSWER = 16  # tokens of an answer without max_tokens, at least
_TOKEN_BYTES = 4  # bytes of a typical token
_MAX_TOKEN_CHARACTERS = 8  # per token of the context, of a prompt that the engine truncates: twice a typical token
_DEFAULT_CONTEXT = 131_072  # tokens, if the model does not say


_COMPARED: Final = 4  # chunks; a shorter prompt can't lose enough to be compared with its previous turn
_FIELDS: Final[Mapping[bytes, Mapping[str, Check]]] = MappingProxyType(
    {CHAT_PATH: CHAT, COMPLETION_PATH: COMPLETION, MESSAGES_PATH: MESSAGES, RESPONSES_PATH: RESPONSES}
)
_STREAMS_WITH_USAGE: Final = (MESSAGES_PATH, RESPONSES_PATH)  # without being asked for it


class Renderer(Protocol):
    """Renders a request to the bytes that the engine will tokenize (`plumage.rendering.ChatRenderer`)."""

    def render_chat(self, body: Mapping[str, Any]) -> bytes: ...

    def render_completion(self, prompt: str | Sequence[int], add_special_tokens: bool = True) -> bytes: ...

    def anthropic_as_chat(self, body: Mapping[str, Any], *, shape_only: bool = False) -> AsChat: ...


_Checked: TypeAlias = tuple[bool, bool, Mapping[str, Any]]
"""Plain: one prompt, all of it text. Predictable: the router knows which bytes the engine computes. Shown: the body
that is rendered, which is the chat that the engine makes of a request of Anthropic's or the Responses API."""


@dataclass(slots=True, init=False)
class Prompt:
    """A valid request.

    `payload`: the body for the engine. `stream`, `wanted_usage`: what the client asked for.
    `text`: the rendered prompt. `chunks`: its chain, empty if the engine truncates the prompt.
    `plain`: one prompt, all of it text, so the engine counts the tokens of `text` and no others.
    `size`: bytes of `text` before `forget` cut it. `script`: its class in `routing.decider`; -1 before it was found.
    `digest`: of `path` and `payload`, once it was computed.
    `generates`: the engine generates an answer, whose time and tokens count. Without it the request is of
    `pass_through`, and has no text.
    `id_salt`: the tenant's part of the response's id; None if the API has no such ids. `previous`: the id of the
    response that this one continues, so only the replica that stores it can answer.
    `uses_device`: the engine computes something for it; otherwise the request says nothing about the engine's load.
    `measured`: the answer's time and tokens say something about the engine's speed.
    `answer`: the most tokens of an answer that the client asked for; None if it did not say.
    `prompts`, `answers`: how many prompts the body has, and how many answers it asks for, for all of them.
    `background`: the engine answers at once and generates afterwards, so its answer says nothing about its speed.
    `boundary`, `audio_tokens`: of a form with an audio file; `audio_tokens` is an estimate.
    `method`, `of_response`: it reads or cancels the stored response `previous`; it has no body then.
    `adapter`: the LoRA that the engine computes with; empty for the base model.
    `turn`: where a rendered chat stands in its conversation. `sorted_tools`: its tools came in another order.
    """

    path: bytes
    model: str
    payload: bytes
    stream: bool
    wanted_usage: WantedUsage
    text: bytes
    chunks: Sequence[int]
    plain: bool
    digest: bytes | None
    generates: bool
    id_salt: str | None
    previous: str | None
    answer: int | None
    prompts: int
    answers: int
    turn: Turn | None
    sorted_tools: bool
    adapter: str
    background: bool
    boundary: bytes
    audio_tokens: int
    method: bytes
    of_response: bool
    size: int
    script: int
    uses_device: bool
    measured: bool

    def __init__(  # written out as in `plumage/routing/interface.py`
        self,
        path: bytes,
        model: str,
        payload: bytes,
        stream: bool,
        wanted_usage: WantedUsage,
        text: bytes,
        chunks: Sequence[int],
        plain: bool = True,
        *,
        generates: bool = True,
        id_salt: str | None = None,
        previous: str | None = None,
        answer: int | None = None,
        prompts: int = 1,
        answers: int = 1,
        turn: Turn | None = None,
        sorted_tools: bool = False,
        adapter: str = "",
        background: bool = False,
        boundary: bytes = b"",
        audio_tokens: int = 0,
        method: bytes = b"POST",
        of_response: bool = False,
    ) -> None:
        self.path, self.model, self.payload, self.stream = path, model, payload, stream
        self.wanted_usage, self.text, self.chunks, self.plain = wanted_usage, text, chunks, plain
        self.digest, self.size, self.script = None, len(text), -1
        self.generates, self.background, self.measured = generates, background, generates and not background
        self.id_salt, self.previous, self.method, self.of_response = id_salt, previous, method, of_response
        self.answer, self.prompts, self.answers = answer, prompts, answers
        self.turn, self.sorted_tools = turn, sorted_tools
        self.boundary, self.audio_tokens = boundary, audio_tokens
        self.uses_device = not of_response and path not in WITHOUT_DEVICE
        self.adapter = adapter if self.uses_device else ""

    def digest_with(self, seed: int) -> bytes:
        """The digest of the path and the bytes that engines get: endpoints may get equal bodies."""
        if self.digest is None:
            self.digest = xxhash.xxh3_128_digest(self.payload, xxhash.xxh3_64_intdigest(self.path, seed))
        return self.digest

    def forget(self, seed: int) -> None:
        """Keeps only what accounting needs: no other replica will be tried. seed: of the digest, which stays known."""
        self.digest_with(seed)
        self.payload, self.text = b"", self.text[-SAMPLE:]

    @property
    def expected_answer(self) -> int:
        """Tokens: the most that the client asked for, for all answers; without a limit what a quota takes."""
        return (self.answer or _ANSWER_TOKENS) * self.answers


class PromptReader:
    """Reads requests for the model of this pool.

    context: the longest prompt in tokens.
    longest_token: bytes of the model's longest token; it makes a refusal by size certain.
    `allowed_fields`: fields that the pool allows although they are forbidden or unknown.
    `sort_tools`: sort tools before they are rendered. `most_values`: the values that a body may have.
    """

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
    ) -> None:
        self.allowed_fields: frozenset[str] = frozenset()
        self.sort_tools = False
        self._renderer = renderer
        self._model = model
        self._served = {model: "", **dict.fromkeys(aliases, ""), **{name: name for name in adapters}}
        self._aliases = frozenset(aliases)
        self._context = context
        self.most_values = most_values(context)
        self._longest_token = longest_token
        self._allow_media = allow_media
        self._seeds: dict[tuple[str, str], int] = {}
        self._chains = ChainMemory()

    def steps_of(
        self, request: Request, *, salt: str = "", tenant: bool = False, ask_usage: bool = True
    ) -> Steps[Prompt]:
        """`steps` or `form_steps` of a request. Raises RequestError for a body of another type than the path takes."""
        boundary = check_media_type(request)
        parsed, request.parsed = request.parsed, None
        path = request.target.partition(b"?")[0]
        if boundary:
            return (yield from self.form_steps(path, request.body, boundary, parsed))
        return (yield from self.steps(path, request.body, parsed, salt=salt, tenant=tenant, ask_usage=ask_usage))

    def read(
        self,
        path: bytes,
        raw: bytes,
        body: Mapping[str, Any] | None = None,
        *,
        salt: str = "",
        tenant: bool = False,
    ) -> Prompt:
        """Returns the request in `raw`, or raises RequestError.

        body: the parsed `raw`, if it was parsed already. tenant: API keys are used, so the router sets `salt`.
        """
        return run_now(self.steps(path, BodyBuffer(raw), body, salt=salt, tenant=tenant))

    def steps(
        self,
        path: bytes,
        data: BodyBuffer,
        body: Mapping[str, Any] | None = None,
        *,
        salt: str = "",
        tenant: bool = False,
        ask_usage: bool = True,
    ) -> Steps[Prompt]:
        """`read` in slices. ask_usage: a stream's payload asks for usage, whatever the client wants."""
        if body is None:
            body = yield from parse_steps(data, self.most_values)
            yield
        raw = data.whole()
        if path in PASSED:
            return self._passed(path, raw, body, salt, tenant)
        tools = sorted_tools(body) if self.sort_tools and "tools" in body else None
        if tools is not None:
            body = {**body, "tools": tools}
            yield
        plain, predictable, shown = self._checked(path, body, tenant, len(raw))
        if tenant and body.get("background") is True and "background" not in self.allowed_fields:
            raise bad_field("background", _UNCOUNTED, code="field_not_allowed")
        yield
        text = self.render(path, shown, len(raw))
        yield
        own_salt = salt or body.get("cache_salt") or ""
        kept = self._kept(shown) if _is_truncated(shown) else None
        if not predictable or (kept is not None and _size(shown, text) > kept):
            chunks = []
        else:
            chunks = self.chain(text, body["model"], own_salt)
        if kept is not None:
            text = text[-_TOKEN_BYTES * max(1, kept) :]
        yield
        prompts = _prompt_count(body)
        return Prompt(
            path,
            body["model"],
            self._payload(path, raw, body, salt, tools, ask_usage=ask_usage),
            body.get("stream") is True,
            _wanted_usage(path, body),
            text,
            chunks,
            plain and predictable,
            id_salt=salt if path == RESPONSES_PATH else None,
            previous=body.get("previous_response_id") if path == RESPONSES_PATH else None,
            answer=_longest_answer(body) or body.get("max_output_tokens"),
            prompts=prompts,
            answers=prompts * (body.get("n") or 1),
            turn=self._turn(path, body["model"], shown, own_salt) if len(chunks) >= _COMPARED else None,
            sorted_tools=tools is not None,
            adapter=self._served[body["model"]],
            background=path == RESPONSES_PATH and body.get("background") is True and body.get("stream") is not True,
        )

    def _passed(self, path: bytes, raw: bytes, body: Mapping[str, Any], salt: str, tenant: bool) -> Prompt:
        """A request that the engine answers without generating."""
        check_passed(path, body, self.allowed_fields, allow_media=self._allow_media)
        name = self._known_model(body)
        self._check_salt(body, tenant)
        shown = body
        if path == COUNT_TOKENS_PATH:
            shown = self._as_chat(path, body, shape_only=True).body
            check_messages(shown["messages"], allow_media=self._allow_media)
        self._check_length(shown, len(raw))
        payload = self._payload(path, raw, body, salt if path in SALTED else "")
        return Prompt(
            path, name, payload, False, wanted_usage(None), b"", (), plain=False, generates=False,
            adapter=self._served[name],
        )  # fmt: skip

    def form_steps(self, path: bytes, data: BodyBuffer, boundary: bytes, form: Form | None = None) -> Steps[Prompt]:
        """A request with an audio file, in slices. form: what `data` has, if it was read already."""
        if form is None:
            form = yield from read_form(data, boundary)
        check_audio(path, form, self.allowed_fields)
        name = self._known_model(form.fields)
        most = form.fields.get("max_completion_tokens")
        return Prompt(
            path,
            name,
            audio_payload(form, self._model if name in self._aliases else name),
            is_true(form, "stream"),
            usage_of_stream(form),
            b"",
            (),
            plain=False,
            generates=False,
            answer=int(most) if most else None,
            adapter=self._served[name],
            boundary=boundary,
            audio_tokens=audio_tokens(form),
        )

    def response_steps(self, call: ResponseCall, *, salt: str) -> Steps[Prompt]:
        """A request for a stored response, which has no body. salt: the tenant's."""
        yield
        return Prompt(
            call.path,
            self._model,
            b"",
            call.stream,
            WantedUsage.EVERY,
            b"",
            (),
            plain=False,
            generates=False,
            id_salt=salt,
            previous=call.name,
            method=call.method,
            of_response=True,
        )

    def check(self, path: bytes, body: Mapping[str, Any], *, tenant: bool = False) -> bool:
        """Checks all rules that need no rendering. Returns whether it is one plain prompt."""
        return self._checked(path, body, tenant)[0]

    def _checked(self, path: bytes, body: Mapping[str, Any], tenant: bool, size: int = 0) -> _Checked:
        known, shown, converted = _FIELDS[path], body, True
        check_fields(body, known, self.allowed_fields)
        self._known_model(body)
        self._check_salt(body, tenant)
        check_stream_options(body.get("stream_options"))
        if path in (MESSAGES_PATH, RESPONSES_PATH):
            shown, converted = self._as_chat(path, body, shape_only=size > MAX_RENDERED)
            if path == MESSAGES_PATH and size > MAX_RENDERED and printable_bytes(shown, size) <= MAX_RENDERED:
                shown, converted = self._as_chat(path, body)  # the rest are images
        if path != COMPLETION_PATH:
            check_template_options(body.get("chat_template_kwargs"))
            messages = check_messages(shown.get("messages"), allow_media=self._allow_media)
        else:
            check_prompt(body.get("prompt"))
            messages = Messages(isinstance(body["prompt"], str), known=True)
        plain = messages.plain and not _is_truncated(shown)
        return plain, converted and messages.known and is_predictable(body, known), shown

    def _as_chat(self, path: bytes, body: Mapping[str, Any], *, shape_only: bool = False) -> AsChat:
        """The chat that an engine makes of a request of another API. Raises RequestError for a wrong type, and for
        more messages or parts than may be converted in one slice."""
        responses = path == RESPONSES_PATH
        name = "input" if responses else "messages"
        items = body.get(name)
        if isinstance(items, list):
            if len(items) > MAX_MESSAGES:
                raise bad_field(name, f"there are more than {MAX_MESSAGES}.", code="too_many")
            if content_count(items) > MAX_PARTS:
                raise bad_field(name, f"there are more than {MAX_PARTS} content parts.", code="too_many")
        try:
            if responses:
                return responses_as_chat(body)
            return self._renderer.anthropic_as_chat(body, shape_only=shape_only)
        except RequestShapeError as error:
            raise bad_field(error.field, f"it {error.message}.", code="invalid_type") from None

    def _known_model(self, body: Mapping[str, Any]) -> str:
        """The model's name in the body. Raises RequestError if it is missing or not of this pool."""
        name: str | None = body.get("model")
        if name is None:
            raise bad_field("model", "it is missing.", code="missing_field")
        if name not in self._served:
            raise unknown_model(name[:128], self._model)
        return name

    def _check_salt(self, body: Mapping[str, Any], tenant: bool) -> None:
        if tenant and body.get("cache_salt") is not None:
            raise bad_field("cache_salt", "the router sets it for each tenant.", code="field_not_allowed")

    def render(self, path: bytes, body: Mapping[str, Any], size: int = 0) -> bytes:
        """Returns the prompt's bytes as the engine sees them; of several prompts the first.

        Returns b"" if rendering costs too much: the request is then routed without knowledge of caches.
        size: bytes of the whole body.
        """
        self._check_length(body, size)
        if size > MAX_RENDERED and printable_bytes(body, size) > MAX_RENDERED:
            return b""
        try:
            text = self._render_prompt(body) if path == COMPLETION_PATH else self._renderer.render_chat(body)
        except TemplateError as error:
            raise _template_error(error) from None
        except RenderLimitError:
            return b""
        most = (self._context or 0) * self._longest_token
        if most and len(text) > most and not _is_truncated(body):
            self._refuse_length()
        return text if len(text) <= MAX_RENDERED else b""

    def _check_length(self, body: Mapping[str, Any], size: int) -> None:
        """Refuses a prompt that is too long before it is rendered.

        An engine tokenizes all of a prompt that it truncates, so such a prompt is bounded as well.
        """
        truncated = _is_truncated(body)
        if not truncated and size <= MAX_RENDERED:
            return  # `render` checks the rendered prompt
        most = (self._context or _DEFAULT_CONTEXT) * (_MAX_TOKEN_CHARACTERS if truncated else self._longest_token)
        if most and any(length > most for length in text_lengths(body)):
            self._refuse_length()

    def _kept(self, body: Mapping[str, Any]) -> int:
        """The tokens at the end of a truncated prompt that the engine keeps, at least. −1: what fits beside the
        answer."""
        asked: int = body["truncate_prompt_tokens"]
        if asked >= 0:
            return asked
        return max(0, (self._context or 0) - (_longest_answer(body) or _DEFAULT_ANSWER))

    def chain(self, text: bytes, model: str, salt: str) -> list[int]:
        """Returns the byte-chunk chain of a rendered prompt."""
        adapter = self._served[model]
        start = self._seeds.get((adapter, salt))
        if start is None:
            start = seed(self._model, adapter, salt)
            if len(self._seeds) < _MAX_SEEDS:
                self._seeds[adapter, salt] = start
        return self._chains.chain(text, start)

    def _turn(self, path: bytes, model: str, shown: Mapping[str, Any], salt: str) -> Turn | None:
        return turn_of(shown["messages"], f"{self._served[model]}\0{salt}") if path != COMPLETION_PATH else None

    def _render_prompt(self, body: Mapping[str, Any]) -> bytes:
        prompt = body["prompt"]
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if self._context and isinstance(prompt, list) and len(prompt) > self._context and not _is_truncated(body):
            self._refuse_length()
        return self._renderer.render_completion(prompt, body.get("add_special_tokens") is not False)

    def _refuse_length(self) -> None:
        message = f"The prompt is longer than this pool's context of {self._context} tokens."
        if self._context is None:
            message = "The prompt is too long."
        raise bad_request(message, code="context_length_exceeded")

    def _payload(
        self,
        path: bytes,
        raw: bytes,
        body: Mapping[str, Any],
        salt: str,
        tools: list[Any] | None = None,
        *,
        ask_usage: bool = True,
    ) -> bytes:
        """The body for the engine: the base model instead of an alias, the tenant's salt, and usage in streams.

        tools: sorted; None if those of the body stay.
        """
        changes: dict[str, Any] = {} if tools is None else {"tools": tools}
        if body["model"] in self._aliases:
            changes["model"] = self._model
        if salt:
            changes["cache_salt"] = salt
        if ask_usage and body.get("stream") is True and path not in _STREAMS_WITH_USAGE:
            if not changes and "stream_options" not in body:  # as in most requests
                return splice_json(raw, ASKS_FOR_USAGE)
            options = stream_options(body.get("stream_options"))
            if options is not None:
                changes["stream_options"] = options
        if path == RESPONSES_PATH and ("request_id" in body or None in body.values()):
            # `request_id` would be the response's id. vLLM takes some null fields for other than absent ones.
            kept = {name: value for name, value in body.items() if name != "request_id" and value is not None}
            return orjson.dumps({**kept, **changes})
        if not changes:
            return raw
        return splice(raw, changes) if changes.keys().isdisjoint(body) else orjson.dumps({**body, **changes})


def _wanted_usage(path: bytes, body: Mapping[str, Any]) -> WantedUsage:
    """The usage that stays in a stream."""
    return WantedUsage.EVERY if path in _STREAMS_WITH_USAGE else wanted_usage(body.get("stream_options"))


def _prompt_count(body: Mapping[str, Any]) -> int:
    """The prompts of a completion, which may be a list of texts or of lists of tokens."""
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1


def _longest_answer(body: Mapping[str, Any]) -> int | None:
    """The client's limit for the answer, in tokens."""
    return body.get("max_completion_tokens") or body.get("max_tokens")


def _is_truncated(body: Mapping[str, Any]) -> bool:
    """Whether the client asks the engine to truncate the prompt."""
    return body.get("truncate_prompt_tokens") is not None


def _size(body: Mapping[str, Any], text: bytes) -> int:
    """The most tokens that the prompt can have. A token is a byte or more; some tokenizers add a space in front."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        prompt = prompt[0]
    return len(prompt) if isinstance(prompt, list) else len(text) + 1


def _template_error(error: TemplateError) -> RequestError:
    brief = str(error).split("\n", 1)[0][:200] or type(error).__name__
    message = f"The model's chat template refuses these messages: {brief}."
    return RequestError(400, message, code="chat_template", param=error.field or "messages")
