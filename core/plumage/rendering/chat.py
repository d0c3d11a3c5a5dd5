"""A request's prompt as the engine will see it, byte for byte: what the directory's chain is computed over.

`ChatRenderer.render_chat(body)` is vLLM's `hf` renderer without its tokenizer. It reads messages and tools as vLLM
does, runs the same template in the same sandbox, and then the tokenizer's own normalizer.

- What the engine would refuse raises `TemplateError` with the template's reason.
- What would cost too much here raises `RenderLimitError`. Then the router chooses a replica without knowing caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import jinja2

from plumage.errors import ConfigurationError
from plumage.rendering.anthropic import EFFORTS, anthropic_as_chat, merges_system
from plumage.rendering.bytetable import ByteTable
from plumage.rendering.contentformat import detect_content_format
from plumage.rendering.conversation import (
    MultimodalCut,
    has_developers,
    read_messages,
    read_tools,
    without_developers,
)
from plumage.rendering.conversion import AsChat
from plumage.rendering.environment import ChatEnvironment
from plumage.rendering.errors import RenderingError, RenderLimitError, TemplateError
from plumage.rendering.folder import ModelFolder
from plumage.rendering.normalizer import Normalizer
from plumage.rendering.outlines import Outlines

__all__ = ["ChatRenderer", "ChatTemplate", "Limits"]

COUNTED = 32  # pieces of output between checks of their size; most are the client's own strings, not copies


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one rendering.

    messages: of a conversation; each one costs about 10 µs, during which the router does nothing else.
    chars: characters of the rendered prompt, which can be longer than the body.
    outlined: the most messages of a conversation whose outline is kept; 0 keeps none.
    changed: characters of a text that the normalizer changes; each one costs up to 0.1 µs.
    """

    messages: int = 4096
    chars: int = 16 << 20
    outlined: int = 48
    changed: int = 1 << 19


class ChatTemplate:
    """One Jinja chat template, with the outlines of conversations that it rendered before."""

    def __init__(self, source: str, clock: Callable[[], datetime], limits: Limits) -> None:
        environment = self._environment = ChatEnvironment(clock)
        try:
            tree = environment.parse(source)
            self._compiled = environment.compile_tree(tree)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigurationError(f"chat template, line {error.lineno}: {error.message}; correct it") from error
        self.source = source
        self.content_format = detect_content_format(tree)
        self.knows_developers = '"developer"' in source or "'developer'" in source
        self.outlines = Outlines.of(
            source, clock, self.content_format, developers=self.knows_developers, limit=limits.chars,
            most=limits.outlined,
        )  # fmt: skip
        self._limits = limits

    def render_usual(self, given: Any, variables: Mapping[str, Any]) -> str:
        """`render` for the one set of variables that most requests have."""
        if self.outlines is not None and type(given) is list:
            text = self.outlines.render(given, variables, self.render)
            if text is not None:
                return text
        return self.render(given, variables)

    def render(self, given: Any, variables: Mapping[str, Any]) -> str:
        """The prompt of the messages `given`, up to the first image or audio."""
        cut = MultimodalCut()
        return cut.apply(self.run(self.read(given, cut), variables))

    def read(self, given: Any, cut: MultimodalCut) -> list[dict[str, Any]]:
        """The messages as the template sees them."""
        messages = read_messages(given, self.content_format, cut)
        return messages if self.knows_developers or not has_developers(messages) else without_developers(messages)

    def run(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        """Runs the template. TemplateError with the template's reason if it refuses the messages."""
        try:
            return self._run({**variables, "messages": messages})
        except RenderLimitError:
            raise
        except RecursionError:
            raise TemplateError("the chat template cannot render this request: it is nested too deep") from None
        except Exception as error:
            raise TemplateError(str(error) or type(error).__name__) from error

    def _run(self, variables: Mapping[str, Any]) -> str:
        printed = self._environment.run(self._compiled, variables)
        pieces: list[str] = []
        size = 0
        while some := list(islice(printed, COUNTED)):
            pieces += some
            size += sum(map(len, some))
            if size > self._limits.chars:
                raise RenderLimitError(f"the rendered prompt passes {self._limits.chars} characters")
        return "".join(pieces)


class ChatRenderer:
    """Renders for one model. Not for several threads at once; its caches are bounded by `limits`.

    clock: the wall clock of `strftime_now`, in the engines' time zone. defaults: the engines'
    `--default-chat-template-kwargs`.
    """

    def __init__(
        self,
        templates: str | Mapping[str, str] | None,
        *,
        clock: Callable[[], datetime],
        special_tokens: Mapping[str, str] | None = None,
        normalizer: Callable[[str], str] | None = None,
        around: tuple[str, str] = ("", ""),
        table: ByteTable | None = None,
        defaults: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        named = {"default": templates} if isinstance(templates, str) else dict(templates or {})
        self._templates = {name: ChatTemplate(source, clock, self.limits) for name, source in named.items()}
        self._special_tokens = dict(special_tokens or {})
        self._normalize = normalize = normalizer or Normalizer()
        self._keeps_ascii = isinstance(normalize, Normalizer) and normalize.keeps_all_ascii
        self._around = around
        self._table = table
        self._defaults = dict(defaults or {})
        self._usual = self._variables_of({})
        self._merges_system: bool | None = None
        self._disabled_effort: str | None = None

    @classmethod
    def from_folder(cls, folder: ModelFolder, *, clock: Callable[[], datetime]) -> ChatRenderer:
        """A tokenizer whose ids can't be turned back into bytes is served too: prompts of ids get no chain then."""
        try:
            table = ByteTable.from_tokenizer_json(folder.tokenizer_json)
        except ConfigurationError:
            table = None
        return cls(
            folder.templates,
            clock=clock,
            special_tokens=folder.special_tokens,
            normalizer=Normalizer.from_tokenizer_json(folder.tokenizer_json),
            around=folder.around,
            table=table,
        )

    def render_chat(self, body: Mapping[str, Any]) -> bytes:
        """The prompt of a chat completion's body, up to its first image or audio. `add_special_tokens`: between those
        that the tokenizer adds, beside what the template prints."""
        text = self._bytes(self.render_text(body))
        if body.get("add_special_tokens") is not True:
            return text
        before, after = self._around
        return before.encode() + text + after.encode()

    def render_text(self, body: Mapping[str, Any]) -> str:
        """`render_chat` before the tokenizer's normalizer."""
        given = body.get("messages")
        if isinstance(given, list) and len(given) > self.limits.messages:
            raise RenderLimitError(f"{len(given)} messages; at most {self.limits.messages} are rendered here")
        variables = self._variables(body)
        template = self._template(variables.get("tools") is not None)
        if body.get("continue_final_message"):
            return _continued(template, variables, given)
        render = template.render_usual if variables is self._usual else template.render
        return render(given, variables)

    def anthropic_as_chat(self, body: Mapping[str, Any], *, shape_only: bool = False) -> AsChat:
        """The chat that vLLM makes of a request of Anthropic's Messages API. RequestShapeError for a wrong type.
        shape_only: see `anthropic.anthropic_as_chat`."""
        if self._merges_system is None:
            self._merges_system = any(
                merges_system(template.source)
                for name, template in self._templates.items()
                if name in ("default", "tool_use")
            )
        return anthropic_as_chat(
            body,
            merge_system=self._merges_system,
            disabled_effort=self._find_disabled_effort,
            shape_only=shape_only,
        )

    def _find_disabled_effort(self) -> str:
        """The effort that switches thinking off. vLLM takes "low" where "none" changes nothing, or is refused."""
        if self._disabled_effort is not None:
            return self._disabled_effort

        def probe(effort: str) -> str | None:
            try:
                return self.render_text({"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": effort})
            except RenderingError:
                return None

        off = probe("none")
        self._disabled_effort = "low" if off is None or off in map(probe, EFFORTS) else "none"
        return self._disabled_effort

    def render_completion(self, prompt: str | Sequence[int], add_special_tokens: bool = True) -> bytes:
        """The prompt of a raw completion: text between the tokens its tokenizer adds; token ids as they are."""
        if isinstance(prompt, str):
            if len(prompt) > self.limits.chars:
                raise RenderLimitError(f"the prompt passes {self.limits.chars} characters")
            before, after = self._around if add_special_tokens else ("", "")
            return before.encode() + self._bytes(prompt) + after.encode()
        return self._table.decode(prompt) if self._table is not None else b""

    def _template(self, with_tools: bool) -> ChatTemplate:
        name = "tool_use" if with_tools and "tool_use" in self._templates else "default"
        try:
            return self._templates[name]
        except KeyError:
            raise TemplateError("this model has no chat template; use /v1/completions") from None

    def _variables(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What the template sees beside the messages; to be read only. Most requests ask for nothing special."""
        return self._usual if _SHAPING.isdisjoint(body) else self._variables_of(body)

    def _variables_of(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A later source overrides an earlier one."""
        asked = body.get("chat_template_kwargs") or {}
        if not isinstance(asked, Mapping) or not _REFUSED.isdisjoint(asked):
            raise TemplateError(
                f"must be an object without {', '.join(sorted(_REFUSED))}", field="chat_template_kwargs"
            )
        continued = bool(body.get("continue_final_message", False))
        prompted = bool(body.get("add_generation_prompt", True))
        if continued and prompted:
            raise TemplateError("continue_final_message needs add_generation_prompt to be false")
        given = {"add_generation_prompt": prompted, "documents": body.get("documents")} | _effort(body, asked)
        merged = {**self._defaults, **_set({"tools": read_tools(body.get("tools"))}), **asked, **_set(given)}
        shown = {name: value for name, value in merged.items() if name not in _CONSUMED}
        return {"tools": None, "documents": None, **self._special_tokens, **shown}

    def _bytes(self, text: str) -> bytes:
        if self._keeps_ascii and text.isascii():
            return text.encode()
        normalize = self._normalize
        if len(text) > self.limits.changed and isinstance(normalize, Normalizer) and not normalize.keeps(text):
            raise RenderLimitError(f"more than {self.limits.changed} characters would have to be normalized")
        return normalize(text).encode("utf-8", "surrogatepass")


_SHAPING = frozenset((
    "chat_template_kwargs", "continue_final_message", "add_generation_prompt", "documents", "tools", "reasoning_effort",
))  # fmt: skip
"""Fields of a body that the template sees, beside the messages."""

_REFUSED = frozenset(("chat_template", "tokenize", "messages", "conversation"))
_CONSUMED = frozenset((
    "continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "tokenizer_kwargs", "return_assistant_tokens_mask", "sanitize_control_tokens",
))  # fmt: skip
"""Arguments of transformers' `apply_chat_template` that never reach the template."""

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def _effort(body: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM lets an effort switch thinking on and off for templates that ask for it by that name."""
    effort = body.get("reasoning_effort")
    if effort is None or "enable_thinking" in asked:
        return {"reasoning_effort": effort}
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM takes None and "auto" for not given."""
    return {name: value for name, value in values.items() if value is not None and value != "auto"}


def _continued(template: ChatTemplate, variables: Mapping[str, Any], given: Any) -> str:
    """The prompt up to the end of the last message's content, so that the model goes on writing it.

    As in transformers: a tag is put behind the content, and the prompt is cut where the template printed the tag.
    """
    cut = MultimodalCut()
    *earlier, last = template.read(given, cut)
    final, text = _tagged(last)
    if "content" not in template.source:
        raise TemplateError("the chat template reads no content", field="continue_final_message")
    rendered = template.run([*earlier, final], variables)
    at = rendered.rfind(_TAG.strip())
    if at < 0 or text.strip() not in rendered:
        raise TemplateError(
            "the chat template does not print the final message as it is", field="continue_final_message"
        )
    kept = rendered[:at]
    return cut.apply(kept if rendered.startswith(_TAG, at) else kept.rstrip())


def _tagged(message: dict[str, Any]) -> tuple[dict[str, Any], str]:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + _TAG}, content
    for index in range(len(content) - 1, -1, -1):
        if "text" in content[index]:
            text: str = content[index]["text"]
            tagged = [*content[:index], {**content[index], "text": text + _TAG}, *content[index + 1 :]]
            return {**message, "content": tagged}, text
    raise TemplateError("the final message has no text", field="continue_final_message")
