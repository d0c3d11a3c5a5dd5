"""Request fields: OpenAI's pass, those that docs/reference/requests.md lists are refused, returned ones pass."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params as of_completion
from openai.types.audio import transcription_create_params as of_transcription
from openai.types.audio import translation_create_params as of_translation
from openai.types.chat import completion_create_params as of_chat

from plumage_router.http.errors import RequestError
from plumage_router.request.audio import TRANSCRIPTION, TRANSLATION
from plumage_router.request.fields import CHAT, COMPLETION, check_fields
from plumage_router.request.forbidden_fields import FORBIDDEN, TEMPLATE_OPTIONS

PAGE = (Path(__file__).parents[2] / "docs/reference/requests.md").read_text()


@pytest.mark.parametrize(
    ("known", "params"),
    [
        (CHAT, of_chat.CompletionCreateParamsStreaming),
        (COMPLETION, of_completion.CompletionCreateParamsStreaming),
    ],
)
def test_every_field_of_the_openai_client_passes(known: Any, params: Any) -> None:
    fields = set(typing.get_type_hints(params))
    assert {"model", "stream", "temperature"} < fields
    assert fields - known.keys() == set()


@pytest.mark.parametrize(
    ("known", "params"),
    [
        (TRANSCRIPTION, of_transcription.TranscriptionCreateParamsStreaming),
        (TRANSLATION, of_translation.TranslationCreateParams),
    ],
)
def test_every_field_of_the_openai_clients_forms_passes(known: Any, params: Any) -> None:
    fields = set(typing.get_type_hints(params))
    assert {"file", "model", "prompt"} < fields
    assert fields - {name.removesuffix("[]") for name in known} == {"file"}


def test_no_field_is_both_known_and_refused() -> None:
    assert FORBIDDEN.keys() & (CHAT.keys() | COMPLETION.keys() | TRANSCRIPTION.keys() | TRANSLATION.keys()) == set()


def test_page_has_each_refused_field_with_its_error() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE, re.M))
    assert rows == dict(FORBIDDEN)
    for name, reason in rows.items():
        with pytest.raises(RequestError) as refused:
            check_fields({name: 1}, CHAT)
        assert refused.value.message == f"{name}: this field may not be sent: {reason}."
        assert (refused.value.status, refused.value.code, refused.value.param) == (400, "field_not_allowed", name)


def test_page_has_each_refused_template_option() -> None:
    assert set(re.findall(r"`(\w+)`", PAGE)) >= TEMPLATE_OPTIONS.keys()
