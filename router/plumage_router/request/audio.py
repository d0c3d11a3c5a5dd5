"""Requests with a form: transcriptions and translations of an audio file, passed on to an engine.

The router reads the small fields and finds the file, which it neither copies nor looks into. It accepts only forms that
an engine reads in the same way (`plumage.multipart`). So a form passes unchanged, except that an alias becomes the
model's name, and that a stream is asked for its usage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from plumage.multipart import FormError, Part, find_parts
from plumage_router.http.body_memory import BodyBuffer
from plumage_router.http.errors import RequestError, bad_field
from plumage_router.http.paths import TRANSCRIPTIONS_PATH, TRANSLATIONS_PATH
from plumage_router.http.time_slicing import LARGE, Steps
from plumage_router.request.forbidden_fields import FORBIDDEN, UNKNOWN
from plumage_router.request.usage import WantedUsage

__all__ = [
    "AUDIO",
    "TRANSCRIPTION",
    "TRANSLATION",
    "Form",
    "audio_payload",
    "audio_tokens",
    "check_audio",
    "invalid_form",
    "is_true",
    "read_form",
    "usage_of_stream",
]

MAX_TEXT: Final = 65_536  # bytes of one field
_TAIL: Final = 1024
_TOKEN_BYTES: Final = 320  # vLLM counts 100 tokens a second; 16 kHz mono PCM has 32,000 bytes a second
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
_NUMBER: Final = re.compile(r"-?\d{1,20}(?:\.\d{1,20})?(?:[eE]-?\d{1,2})?", re.A)
_WHOLE: Final = re.compile(r"-?\d{1,20}", re.A)
_USAGE: Final = "stream_include_usage"
_FORMATS: Final = ("json", "text", "srt", "verbose_json", "vtt")

Check = Callable[[str], str | None]  # returns what the value must be; None for a valid value


class Form(NamedTuple):
    """A form with one file. values: the other fields in their order; those whose name ends with [] may come several
    times. fields: the others by name. places: where each field is in the body."""

    body: bytes
    boundary: bytes
    values: Sequence[tuple[str, str]]
    fields: Mapping[str, str]
    places: Mapping[str, Part]
    file: Part

    @property
    def given(self) -> dict[str, str]:
        """The fields with a value: engines take an empty field for an absent one."""
        return {name: value for name, value in self.fields.items() if value}

    @property
    def tail(self) -> str:
        """The end of the file, by which two files differ."""
        return self.body[max(self.file.start, self.file.end - _TAIL) : self.file.end].decode("latin-1")


def _text(value: str) -> str | None:
    return None


def _flag(value: str) -> str | None:
    return None if value.lower() in _FLAGS else "must be true or false"


def _one_of(*allowed: str) -> Check:
    def check(value: str) -> str | None:
        return None if value in allowed else f"must be one of {', '.join(allowed)}"

    return check


def _number(low: float, high: float) -> Check:
    def check(value: str) -> str | None:
        right = _NUMBER.fullmatch(value) is not None and low <= float(value) <= high
        return None if right else f"must be a number from {low:g} to {high:g}"

    return check


def _whole(low: int, high: int) -> Check:
    def check(value: str) -> str | None:
        right = _WHOLE.fullmatch(value) is not None and low <= int(value) <= high
        return None if right else f"must be a whole number from {low} to {high}"

    return check


TRANSLATION: Final[Mapping[str, Check]] = {
    "model": _text,
    "prompt": _text,
    "language": _text,
    "to_language": _text,
    "hotwords": _text,
    "response_format": _one_of(*_FORMATS),
    **dict.fromkeys(
        ("stream", "stream_include_usage", "stream_continuous_usage_stats", "include_stop_str_in_output"), _flag
    ),
    "temperature": _number(0, 100),
    "top_p": _number(0, 1),
    "top_k": _whole(-1, 2**31 - 1),
    "min_p": _number(0, 1),
    "n": _whole(1, 128),
    "length_penalty": _number(-100, 100),
    "seed": _whole(-(2**63), 2**63 - 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0, 100),
    "max_completion_tokens": _whole(1, 2**31 - 1),
}
TRANSCRIPTION: Final[Mapping[str, Check]] = {
    **TRANSLATION,
    "response_format": _one_of(*_FORMATS, "diarized_json"),
    "timestamp_granularities[]": _one_of("word", "segment"),
    # OpenAI's fields without effect in vLLM.
    **dict.fromkeys(
        (
            "chunking_strategy",
            "chunking_strategy[type]",
            "chunking_strategy[prefix_padding_ms]",
            "chunking_strategy[silence_duration_ms]",
            "chunking_strategy[threshold]",
            "include[]",
            "keywords[]",
            "known_speaker_names[]",
            "known_speaker_references[]",
            "languages[]",
        ),
        _text,
    ),
}
AUDIO: Final[Mapping[bytes, Mapping[str, Check]]] = {TRANSCRIPTIONS_PATH: TRANSCRIPTION, TRANSLATIONS_PATH: TRANSLATION}
"""The fields of each endpoint beside `file`, by path."""


def invalid_form(message: str) -> RequestError:
    return RequestError(400, f"The form cannot be read: {message}.", code="invalid_form")


def read_form(data: BodyBuffer, boundary: bytes) -> Steps[Form]:
    """Finds the fields of a form in slices. Raises RequestError if it cannot be read, has not exactly one file, or has
    a field twice or one that is too long."""
    body = data.whole()
    if len(body) > LARGE:
        yield
    try:
        parts = yield from find_parts(body, boundary)
    except FormError as error:
        raise invalid_form(str(error)) from None
    values: list[tuple[str, str]] = []
    places: dict[str, Part] = {}
    for part in parts:
        name = part.name
        if part.is_file != (name == "file"):
            wrong = "it must be a file, with a file name" if name == "file" else "only the field file may be a file"
            raise bad_field(name, f"{wrong}.", code="invalid_type")
        if name in places and not name.endswith("[]"):
            raise RequestError(400, f"{name}: this field is given twice.", code="duplicate_key", param=name)
        places[name] = part
        if not part.is_file:
            values.append((name, _value(body, part)))
    if "file" not in places:
        raise bad_field("file", "it is missing.", code="missing_field")
    return Form(body, boundary, values, dict(values), places, places["file"])


def _value(body: bytes, part: Part) -> str:
    if part.end - part.start > MAX_TEXT:
        raise bad_field(part.name, f"it may have at most {MAX_TEXT} bytes.", code="too_many")
    try:
        return body[part.start : part.end].decode()
    except UnicodeDecodeError:
        raise bad_field(part.name, "it must be UTF-8 text.", code="invalid_type") from None


def check_audio(path: bytes, form: Form, allowed: Collection[str]) -> None:
    """Raises RequestError for the first field that is not allowed or has a wrong value, and without a model. allowed:
    further names that the pool lets pass."""
    known = AUDIO[path]
    for name, value in form.values:
        check = known.get(name)
        if check is None:
            if name not in allowed:
                reason = FORBIDDEN.get(name, UNKNOWN)
                raise bad_field(name, f"this field may not be sent: {reason}.", code="field_not_allowed")
        elif value and (wrong := check(value)) is not None:
            raise bad_field(name, f"it {wrong}.", code="invalid_type")
    if not form.fields.get("model"):
        raise bad_field("model", "it is missing.", code="missing_field")
    if form.file.start == form.file.end:
        raise bad_field("file", "it is empty.", code="invalid_type")


def is_true(form: Form, name: str) -> bool:
    """Whether a field is a flag that is set."""
    return _FLAGS.get(form.fields.get(name, "").lower(), False)


def usage_of_stream(form: Form) -> WantedUsage:
    """The usage that the client asked for in a stream."""
    if not is_true(form, _USAGE):
        return WantedUsage.NONE
    return WantedUsage.EVERY if is_true(form, "stream_continuous_usage_stats") else WantedUsage.LAST


def audio_payload(form: Form, model: str) -> bytes:
    """The body for the engine: with `model` as the model's name, and a stream with its usage. The file is copied only
    if one of the two changes the body."""
    changes: list[tuple[Part, bytes]] = []
    front = b""
    if form.fields["model"] != model:
        changes.append((form.places["model"], model.encode()))
    if is_true(form, "stream") and usage_of_stream(form) is WantedUsage.NONE:
        given = form.places.get(_USAGE)
        if given is not None:
            changes.append((given, b"true"))
        else:
            head = f'Content-Disposition: form-data; name="{_USAGE}"'
            front = b"--%b\r\n%b\r\n\r\ntrue\r\n" % (form.boundary, head.encode())
    return _spliced(form.body, changes, front) if changes or front else form.body


def _spliced(body: bytes, changes: list[tuple[Part, bytes]], front: bytes) -> bytes:
    """The body with other values, and with a field in front of the others."""
    pieces: list[bytes | memoryview] = [front]
    at, view = 0, memoryview(body)
    for part, value in sorted(changes, key=lambda change: change[0].start):
        pieces += [view[at : part.start], value]
        at = part.end
    return b"".join([*pieces, view[at:]])


def audio_tokens(form: Form) -> int:
    """An estimate of the tokens that an engine computes for the file: nobody decodes it before the engine does."""
    return -(-(form.file.end - form.file.start) // _TOKEN_BYTES)
