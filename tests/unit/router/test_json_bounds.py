"""The values of a body are counted before it is parsed, for any window size."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage_router.http.body_memory import BodyBuffer
from plumage_router.http.errors import RequestError
from plumage_router.http.time_slicing import LARGE, run_now
from plumage_router.request import body as body_module
from plumage_router.request.body import LIGHT, check_bounds, is_light, parse_body, parse_steps

_TEXT = st.text(alphabet='\\"{[,:u0', max_size=12)
_JSON = st.recursive(
    st.integers(0, 9) | _TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_TEXT, inner, max_size=5),
    max_leaves=20,
)


def containers(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(containers, value.values()))
    return 1 + sum(map(containers, value)) if isinstance(value, list) else 0


@given(_JSON, st.integers(1, 9), st.booleans())
def test_containers_outside_strings_are_counted(value: Any, window: int, split: bool) -> None:
    raw, held = json.dumps(value).encode(), containers(value)
    with pytest.MonkeyPatch.context() as patch:
        if split:
            patch.setattr(body_module, "_walk", lambda *_: None)
        patch.setattr(body_module, "WINDOW", window)
        patch.setattr(body_module, "MAX_CONTAINERS", held)
        run_now(check_bounds([raw]))
        if held:
            patch.setattr(body_module, "MAX_CONTAINERS", held - 1)
            with pytest.raises(RequestError, match="more than"):
                run_now(check_bounds([raw]))


@given(_JSON, st.lists(st.integers(0, 60), max_size=6), st.integers(1, 9))
def test_counts_do_not_depend_on_how_the_body_arrived(value: Any, cuts: list[int], window: int) -> None:
    raw = json.dumps([value, "\\", {'\\"{': value}]).encode()
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    parts = [raw[start:end] for start, end in itertools.pairwise(places)]
    whole = run_now(check_bounds([raw]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_module, "WINDOW", window)
        assert run_now(check_bounds(parts)) == whole


def test_refused_body_is_never_joined() -> None:
    body = BodyBuffer()
    for _ in range(8):
        body.add(b"{}," * 20_000)
    with pytest.raises(RequestError, match="more than"):
        run_now(parse_steps(body))
    assert len(body.parts) == 8


@pytest.mark.parametrize(
    "hostile",
    [
        b'{"messages":[{"role":"user","content":[' + b",".join([b'{"type":"text","text":""}'] * 600_000) + b"]}]}",
        b'{"user":"\\u0022","metadata":[' + b"{}," * 5_000_000 + b"{}]}",
        b'{"prompt":[' + b"1," * 8_000_000 + b"1]}",
        b'{"a":' + b"[" * 8_000_000,
        b'{"stop":[' + b'"",' * 4_000_000 + b'""]}',
        b'{"messages":[{"content":"x",' + b",".join(b'"k%d":1' % n for n in range(200_000)) + b"}]}",
        b'{"prompt":"' + b"\\" * 15_000_000 + b'"}',
        b'{"prompt":"' + b"\\" * 15_000_001,
        b'{"prompt":"' + b'\\"' * 7_000_000 + b'"}',
        b'{"prompt":"' + b"\\u00e9" * 2_600_000 + b'"}',
        b'{"prompt":[' + b",".join([b"1" * 30] * 500_000) + b"]}",
        b'{"prompt":"x"' + b" " * 15_000_000 + b"}",
    ],
    ids=[
        *("parts", "objects", "ids", "nested", "texts", "keys", "backslashes", "open backslashes", "escaped quotes"),
        *("escapes", "long numbers", "spaces"),
    ],
)
def test_hostile_body_is_refused_before_parsing(hostile: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumage_router.request.body.orjson.loads", lambda _: pytest.fail("parsed"))
    with pytest.raises(RequestError) as refused:
        parse_body(hostile)
    assert (refused.value.status, refused.value.code) == (400, "too_many")


def test_prompt_of_token_ids_may_have_the_most_values() -> None:
    ids = [200_000 + n % 1000 for n in range(body_module.MAX_VALUES - 1)]
    raw = json.dumps({"prompt": ids}).encode()
    assert parse_body(raw) == {"prompt": ids}


@pytest.mark.parametrize(
    ("context", "most"), [(None, 262_144), (4096, 262_144), (262_144, 327_680), (10_000_000, 524_288)]
)
def test_prompt_of_ids_may_fill_the_context(context: int | None, most: int) -> None:
    assert body_module.most_values(context) == most
    raw = b'{"prompt":[' + b",".join([b"1"] * (most - 1)) + b"]}"
    run_now(check_bounds([raw], most))
    with pytest.raises(RequestError, match=f"more than {most:,} values"):
        run_now(check_bounds([raw[:-2] + b",1,1,1]}"], most))


def test_million_escaped_characters_pass() -> None:
    """Python's json escapes every character outside of ASCII."""
    text = "é" * 1_000_000
    assert parse_body(json.dumps({"prompt": text}).encode()) == {"prompt": text}


def test_long_text_may_contain_brackets() -> None:
    text = '{[,:"\\' * 400_000
    assert parse_body(json.dumps({"prompt": text}).encode()) == {"prompt": text}


@given(_JSON, _JSON)
def test_walk_and_split_count_alike(one: Any, other: Any) -> None:
    """From a place between two strings, and from one inside a string."""
    for raw, inside in ((json.dumps([one, other]).encode(), False), (json.dumps(["", one]).encode()[2:], True)):
        padded = raw + b" " * 100_000
        walked = body_module._walk(padded, 0, len(padded), inside)
        assert walked == body_module._split(padded, inside, 1000)


def test_long_run_of_backslashes_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "WINDOW", 16)
    monkeypatch.setattr(body_module, "MAX_CONTAINERS", 3)
    run = b"\\" * 100
    run_now(check_bounds([b'{"a":"' + run + b'","b":[{}]}']))
    with pytest.raises(RequestError):
        run_now(check_bounds([b'{"a":"' + run + b'","b":[{},{}]}']))
    run_now(check_bounds([b'{"a":"' + run + b'\\"' + b'{{{{{{{{{{","b":[{}]}']))


@pytest.mark.parametrize("run", [1, 15, 16, 17, 100, 101])
@pytest.mark.parametrize("start", range(3))
def test_windows_are_bounded_and_end_within_no_escape(run: int, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "WINDOW", 16)
    raw = b" " * start + b"\\" * run + b'"' + b"x" * 40
    at = 0
    while at < len(raw):
        end = body_module._window_end(raw, at, min(len(raw), at + 16))
        assert at < end <= at + 16
        assert end < start or end > start + run or (end - start) % 2 == 0
        at = end


def test_keys_in_strings_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "MAX_KEYS", 2)
    run_now(check_bounds([b'{"a":"x:y:z","b":"::::"}']))
    with pytest.raises(RequestError, match="2 keys"):
        run_now(check_bounds([b'{"a":{"b":1},"c":1}']))


def _outcome(data: BodyBuffer) -> Any:
    """The object in a body, or the code of the error."""
    try:
        return run_now(parse_steps(data))
    except RequestError as error:
        return error.code


@given(st.lists(st.tuples(st.sampled_from(["a", "b", 'c"', "d"]), _JSON), max_size=4), st.integers(0, 3), _TEXT)
def test_light_body_is_read_as_in_slices(pairs: list[tuple[str, Any]], cut: int, text: str) -> None:
    """Also with keys given twice, and with its end missing."""
    long = json.dumps(text + "x" * LARGE)
    raw = "".join(("{", *(f"{json.dumps(key)}:{json.dumps(value)}," for key, value in pairs), f'"long":{long}', "}"))
    data = BodyBuffer(raw.encode()[: len(raw) - cut])
    assert is_light(data)
    assert data.counted is not None
    assert _outcome(data) == _outcome(BodyBuffer(data.whole()))


@pytest.mark.parametrize(
    "raw",
    [
        b'{"long":"' + b"x" * LIGHT + b'"}',
        b'{"metadata":[' + b"{}," * 3000 + b'{}],"long":"' + b"x" * LARGE + b'"}',
        b'{"stop":["' + b'","' * 600 + b'"],"long":"' + b"x" * LARGE + b'"}',
        b'{"long":"' + b'\\"' * 600 + b"x" * LARGE + b'"}',
        b'["' + b"x" * LARGE + b'"]',
    ],
    ids=["long", "objects", "texts", "escaped quotes", "no object"],
)
def test_other_body_is_not_light(raw: bytes) -> None:
    data = BodyBuffer(raw)
    assert not is_light(data)
    assert data.counted is None


def test_light_body_may_arrive_in_parts() -> None:
    data = BodyBuffer()
    for part in (b'{"a":{"long":"' + b"x" * 40_000, b"x" * 40_000 + b"\\", b'""}', b"}"):
        data.add(part)
    assert is_light(data)
    assert data.counted == (2, 2)
