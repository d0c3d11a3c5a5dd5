"""What a client may send to a renderer, what it gets back, and what it cannot do."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from support.needs import module

from plumage.errors import ConfigurationError
from plumage.models import resolve
from plumage.rendering import ChatRenderer, Limits, ModelFolder, RenderLimitError, TemplateError

CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
HELLO = {"role": "user", "content": "hello"}


def renderer(template: str, **limits: int) -> ChatRenderer:
    return ChatRenderer(template, clock=lambda: datetime(2030, 5, 1, 12), limits=Limits(**limits))


def rendered(template: str, **body: Any) -> str:
    return renderer(template).render_text({"messages": [HELLO], **body})


def test_built_in_model_renders_chatml() -> None:
    chat = ChatRenderer.from_folder(ModelFolder.load(resolve("builtin://tiny-chat")), clock=datetime.now)
    body = {"messages": [{"role": "system", "content": "S"}, HELLO]}
    expected = "<|bos|><|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert chat.render_chat(body) == expected.encode()


class TestRawCompletions:
    chat = ChatRenderer.from_folder(ModelFolder.load(resolve("builtin://tiny-chat")), clock=datetime.now)

    def test_text_starts_with_the_beginning_of_sequence(self) -> None:
        assert self.chat.render_completion("Ünder") == "<|bos|>Ünder".encode()

    def test_client_may_disable_the_special_token(self) -> None:
        assert self.chat.render_completion("x", add_special_tokens=False) == b"x"

    def test_token_ids_become_their_bytes(self) -> None:
        tokenizers = module("tokenizers")
        tokenizer = tokenizers.Tokenizer.from_file(str(resolve("builtin://tiny-chat") / "tokenizer.json"))
        text = "def f():\n    return 'naïve 日本 🙂'"
        assert self.chat.render_completion(tokenizer.encode(text).ids) == f"<|bos|>{text}".encode()

    def test_lone_surrogate_is_no_crash(self) -> None:
        assert self.chat.render_completion("\ud800") == b"<|bos|>\xed\xa0\x80"

    def test_ids_of_an_irreversible_tokenizer_have_no_bytes(self) -> None:
        assert renderer(CHATML).render_completion([1, 2, 3]) == b""


class TestWhatTheTemplateSees:
    @pytest.mark.parametrize(
        ("fields", "seen"),
        [
            ({"reasoning_content": "old"}, "old"),
            ({"reasoning": "new", "reasoning_content": "old"}, "new"),
            ({"reasoning": None, "reasoning_content": "old"}, "old"),
        ],
    )
    def test_older_name_of_the_reasoning_is_read_where_the_newer_one_is_absent(
        self, fields: dict[str, Any], seen: str
    ) -> None:
        messages = [HELLO, {"role": "assistant", "content": "x", **fields}]
        text = renderer("{{ messages[1].reasoning }} {{ messages[1].reasoning_content }}")
        assert text.render_text({"messages": messages}) == f"{seen} {seen}"

    def test_clock_is_the_given_one(self) -> None:
        assert rendered("{{ strftime_now('%d %b %Y') }}") == "01 May 2030"

    def test_settings_of_the_client_win_over_those_of_the_engine(self) -> None:
        chat = ChatRenderer("{{ a }}{{ b }}", clock=datetime.now, defaults={"a": 1, "b": 2})
        assert chat.render_text({"messages": [HELLO], "chat_template_kwargs": {"b": 3}}) == "13"

    def test_effort_switches_thinking(self) -> None:
        template = "{{ reasoning_effort }} {{ enable_thinking }}"
        assert rendered(template, reasoning_effort="none") == "none False"
        assert rendered(template, reasoning_effort="low") == "low True"
        assert rendered(template, reasoning_effort="low", chat_template_kwargs={"enable_thinking": 0}) == "low 0"

    def test_template_for_tools_is_used(self) -> None:
        chat = ChatRenderer({"default": "plain", "tool_use": "tools"}, clock=datetime.now)
        tools = [{"type": "function", "function": {"name": "f"}}]
        assert chat.render_text({"messages": [HELLO]}) == "plain"
        assert chat.render_text({"messages": [HELLO], "tools": tools}) == "tools"

    def test_developer_message_becomes_a_system_message_where_the_template_needs_it(self) -> None:
        messages = [HELLO, {"role": "developer", "content": "be kind"}, {"role": "system", "content": "be brief"}]
        assert rendered(CHATML, messages=messages) == "<system>be kind\n\nbe brief<user>hello<a>"
        assert rendered("{# 'developer' #}" + CHATML, messages=messages[1:2]) == "<developer>be kind<a>"

    def test_tool_call_keys_have_the_order_of_the_api(self) -> None:
        call = {"type": "function", "index": 0, "function": {"name": "f", "arguments": '{"x": 1}'}, "id": "1"}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        printed = rendered("{{ messages[0].tool_calls | tojson }}", messages=[message])
        assert printed == '[{"id": "1", "function": {"arguments": {"x": 1}, "name": "f"}, "type": "function"}]'

    @pytest.mark.parametrize("arguments", ["", None, "{", "[1]", "4", "null"])
    def test_arguments_that_are_no_object_become_an_empty_one(self, arguments: str | None) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        message = {"role": "assistant", "tool_calls": [call]}
        assert rendered("{{ messages[0].tool_calls[0].function.arguments }}", messages=[message]) == "{}"

    def test_json_cache_separates_types_and_options(self) -> None:
        template = "{{ x | tojson }} {{ x | tojson(indent=1) }} {{ x | tojson(ensure_ascii=true) }}"
        chat = renderer(template)

        def printed(x: Any) -> str:
            return chat.render_text({"messages": [HELLO], "chat_template_kwargs": {"x": x}})

        for x in ([1], [True], [1.0], ["é<&>"], [None]):
            assert printed(x) == printed(x)
        assert printed([1]).startswith("[1] [\n 1\n] [1]")
        assert printed([True]).startswith("[true]")
        assert printed([1.0]).startswith("[1.0]")
        assert printed(["é<&>"]) == '["é<&>"] [\n "é<&>"\n] ["\\u00e9<&>"]'


class TestRefusals:
    @pytest.mark.parametrize(
        "messages",
        [
            None, [], {}, "hi", [1], ["hi"], [{}], [{"content": "x"}], [{"role": 1}], [{"role": "user", "content": 5}],
            [{"role": "user", "content": [5]}], [{"role": "user", "content": [{"type": "text", "text": 5}]}],
            [{"role": "user", "content": [{"type": "smell"}]}], [{"role": "user", "content": [{}]}],
            [{"role": "assistant", "tool_calls": {"a": 1}}], [{"role": "assistant", "tool_calls": [1]}],
            [{"role": "assistant", "tool_calls": [{"type": "custom"}]}],
        ],
    )  # fmt: skip
    def test_messages_of_a_wrong_shape(self, messages: Any) -> None:
        with pytest.raises(TemplateError, match="messages"):
            rendered(CHATML, messages=messages)
        if isinstance(messages, list) and messages:
            with pytest.raises(TemplateError, match="messages"):
                rendered(CHATML, messages=[HELLO] * 20 + messages)

    @pytest.mark.parametrize("tools", ["f", [1], [{}], [{"function": {"name": 3}}]])
    def test_tools_of_a_wrong_shape(self, tools: Any) -> None:
        with pytest.raises(TemplateError, match="tools"):
            rendered(CHATML, tools=tools)

    @pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages"])
    def test_options_that_would_replace_the_template(self, name: str) -> None:
        with pytest.raises(TemplateError, match="chat_template_kwargs"):
            rendered(CHATML, chat_template_kwargs={name: "x"})

    def test_model_without_a_template(self) -> None:
        with pytest.raises(TemplateError, match="/v1/completions"):
            ChatRenderer(None, clock=datetime.now).render_chat({"messages": [HELLO]})

    def test_contradicting_ends_of_a_prompt(self) -> None:
        with pytest.raises(TemplateError, match="add_generation_prompt"):
            rendered(CHATML, continue_final_message=True)

    def test_nesting_beyond_the_recursion_limit(self) -> None:
        deep: Any = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(TemplateError):
            rendered("{{ messages[0].content }}{{ documents | tojson }}", documents=[{"text": deep}])
        arguments = "[" * 100_000
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        with pytest.raises(TemplateError):
            rendered(CHATML, messages=[{"role": "assistant", "tool_calls": [call]}])

    def test_invalid_jinja_template(self) -> None:
        with pytest.raises(ConfigurationError, match="line 2"):
            renderer("ok\n{% for %}")


class TestTheSandbox:
    @pytest.mark.parametrize(
        "attack",
        [
            "{{ messages.__class__.__mro__ }}", "{{ ''.__class__.__base__ }}", "{{ messages.append(1) }}",
            "{{ messages[0].update({'role': 'x'}) }}", "{{ messages[0].clear() }}", "{{ strftime_now.__globals__.os }}",
            "{{ namespace.__init__.__globals__ }}", "{% set ns = namespace(_x=1) %}", "{{ dict.__mro__[0] }}",
            "{% set ns = namespace(a=1) %}{% set ns.__class__ = 1 %}", "{{ range(10 ** 9) | list | length }}",
            "{{ lipsum.__globals__['os'] }}", "{{ cycler.__init__.__globals__ }}", "{% include '/etc/passwd' %}",
            "{% import 'os' as os %}", "{{ '%s' | format(x.y.z) }}", "{{ '{0.__class__.__mro__}'.format(1) }}",
            "{{ namespace(f='{0.__class__.__mro__}'.format).f(1) }}",
            "{{ dict(f='{0.__class__.__mro__}'.format).f(1) }}",
        ],
    )  # fmt: skip
    def test_templates_reach_only_their_data(self, attack: str) -> None:
        with pytest.raises(TemplateError):
            rendered(attack)

    def test_client_text_is_never_a_template(self) -> None:
        evil = "{{ 7 * 7 }}{% raise %}{# x #}"
        messages = [{"role": "user", "content": evil}] * 20
        assert rendered(CHATML, messages=messages) == f"<user>{evil}" * 20 + "<a>"

    def test_body_is_not_changed(self) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
        body = {"messages": [HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}] * 10}
        before = repr(body)
        renderer(CHATML).render_text(body)
        assert repr(body) == before


class TestLimits:
    def test_more_messages_than_the_limit(self) -> None:
        with pytest.raises(RenderLimitError, match="at most 5"):
            renderer(CHATML, messages=5).render_text({"messages": [HELLO] * 6})

    def test_prompt_larger_than_the_limit(self) -> None:
        with pytest.raises(RenderLimitError):
            renderer(CHATML, chars=100).render_text({"messages": [HELLO] * 20})

    def test_template_that_multiplies_its_input_stops_at_the_limit(self) -> None:
        template = "{% for m in messages %}{% for n in messages %}{{ n.content }}{% endfor %}{% endfor %}"
        with pytest.raises(RenderLimitError):
            renderer(template, chars=10_000).render_text({"messages": [HELLO] * 1000})

    def test_raw_prompt_larger_than_the_limit(self) -> None:
        with pytest.raises(RenderLimitError):
            renderer(CHATML, chars=100).render_completion("x" * 101)


EVERYTHING = "{{ [tools, documents, add_generation_prompt, reasoning_effort, enable_thinking, colour] | string }}"


@pytest.mark.parametrize(
    "asked",
    [
        {"tools": [{"type": "function", "function": {"name": "look"}}]},
        {"documents": [{"text": "a page"}]},
        {"add_generation_prompt": False},
        {"reasoning_effort": "low"},
        {"chat_template_kwargs": {"colour": "red"}},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_cache_key_covers_every_field_that_shapes_the_prompt(asked: dict[str, Any]) -> None:
    same, body = renderer(EVERYTHING), {"messages": [{"role": "user", "content": "x"}]}
    usual = same.render_chat(body)
    assert same.render_chat({**body, **asked}) != usual
    assert same.render_chat({**body, "temperature": 0.5}) == usual


def test_absent_fields_do_not_replace_each_other() -> None:
    fields = (
        "{% for m in messages %}{{ m.colour is defined }} {{ m.size is defined }} {% endfor %}{{ messages[0].a.b }}"
    )
    with pytest.raises(TemplateError, match="'dict object' has no attribute 'a'"):
        rendered(fields, messages=[{"role": "user", "content": "x"}])
    same = renderer("{% for m in messages %}{{ m.name or 'nobody' }},{% endfor %}")
    named = [{"role": "user", "content": "x"}, {"role": "user", "content": "y", "name": "Ada"}]
    assert same.render_chat({"messages": [*named, named[0]]}) == b"nobody,Ada,nobody,"
