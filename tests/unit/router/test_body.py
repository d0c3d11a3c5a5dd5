"""Request bodies: parsing, refused JSON, and detection of duplicate keys."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumage_router.http.errors import RequestError
from plumage_router.http.time_slicing import LARGE
from plumage_router.request.body import _keys, parse_body, splice

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
_BODIES = st.dictionaries(st.text(max_size=6), _JSON, max_size=5)


@given(_BODIES, st.booleans(), st.sampled_from([None, 1, 3]))
def test_parser_reads_any_object(body: dict[str, Any], ascii_only: bool, indent: int | None) -> None:
    raw = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    try:
        expected = orjson.loads(raw)
    except orjson.JSONDecodeError:  # a lone surrogate
        with pytest.raises(RequestError):
            parse_body(raw)
    else:
        assert parse_body(raw) == expected


def _written(pairs: list[tuple[str, Any]], escape: bool) -> bytes:
    """An object with any keys, repeated ones included."""
    parts = [f"{_string(key, escape)}:{json.dumps(value)}" for key, value in pairs]
    return ("{" + ",".join(parts) + "}").encode()


def _string(text: str, escape: bool) -> str:
    return '"' + "".join(f"\\u{ord(char):04x}" for char in text) + '"' if escape else json.dumps(text)


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", 'c"', "d"]), st.sampled_from([1, 'x"y', "", None, {"k": 1}])), max_size=6
    ),
    st.booleans(),
)
def test_parser_refuses_duplicate_key(pairs: list[tuple[str, Any]], escape: bool) -> None:
    raw = _written(pairs, escape)
    for document in (raw, b'{"deep":[{"er":' + raw + b"}]}"):
        if len({key for key, _ in pairs}) == len(pairs):
            assert parse_body(document) == json.loads(document)
        else:
            with pytest.raises(RequestError) as refused:
                parse_body(document)
            assert (refused.value.status, refused.value.code) == (400, "duplicate_key")


def test_escaped_quotes_do_not_hide_duplicate_key() -> None:
    raw = b'{"a":"1","a":"2","b":"\\u0022\\u0022\\u0022\\u0022"}'
    assert orjson.dumps(orjson.loads(raw)).count(b'"') == raw.count(b'"'), "the counts agree by design"
    with pytest.raises(RequestError, match="twice"):
        parse_body(raw)


@given(st.text(alphabet='\\"u02aé', max_size=30), st.booleans())
def test_quote_count_handles_backslashes(text: str, twice: bool) -> None:
    chars = ("\\u0022" if twice and char == '"' else json.dumps(char)[1:-1] for char in text)
    spelled = '"' + "".join(chars) + '"'
    raw = f'{{"a" : {spelled}}}'.encode()
    assert parse_body(raw) == json.loads(raw)
    with pytest.raises(RequestError, match="twice"):
        parse_body(f'{{"a" : {spelled}, "a":1}}'.encode())


@given(_BODIES.filter(bool), st.sampled_from([b"", b" \n"]))
def test_splice_puts_fields_in_front(body: dict[str, Any], space: bytes) -> None:
    raw = space + orjson.dumps(body)
    if "cache_salt" not in body:
        assert orjson.loads(splice(raw, {"cache_salt": 's"x'})) == {"cache_salt": 's"x', **body}
        assert splice(raw, {"cache_salt": "s"}).endswith(raw.lstrip()[1:])


def test_duplicate_key_of_long_body_needs_no_slow_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumage_router.request.body.json.loads", lambda *_, **__: pytest.fail("the slow parser"))
    keys = ",".join(f'"{number:x}":0' for number in range(30_000))
    assert len(parse_body(f'{{{keys}, "user":"\\u0022\\\\u0022"}}'.encode())) == 30_001
    with pytest.raises(RequestError) as refused:
        parse_body(f'{{{keys},"2fff":0,"user":"\\u0022"}}'.encode())
    assert (refused.value.code, refused.value.param) == ("duplicate_key", None)


@given(_BODIES, st.sampled_from([None, 1, 3]))
def test_keys_of_a_large_body_are_counted_at_any_depth(body: dict[str, Any], indent: int | None) -> None:
    raw = json.dumps({"pad": "x" * LARGE, "body": body}, indent=indent, ensure_ascii=False).encode(errors="replace")
    assert parse_body(raw)["pad"] == "x" * LARGE
    inner = raw.rindex(b"}", 0, raw.rindex(b"}"))  # the end of the inner object
    twice = b'"k":1,"k":2' if not body else b',"k":1,"k":2'
    if "k" not in body:
        with pytest.raises(RequestError, match="twice"):
            parse_body(raw[:inner] + twice + raw[inner:])


@pytest.mark.parametrize("size", [1, LARGE])
def test_depth_is_bounded_alike_in_small_and_large_bodies(size: int) -> None:
    def nested(depth: int) -> bytes:
        return b'{"user":"%b", "deep":%b1%b}' % (b"x" * size, b"[" * depth, b"]" * depth)

    assert parse_body(nested(253))["user"] == "x" * size
    with pytest.raises(RequestError, match="nested too deeply"):
        parse_body(nested(254))


def test_elements_of_a_list_of_ids_are_not_visited() -> None:
    body = {"prompt": list(range(100_000)), "user": "x"}
    assert len(list(_keys(body, 2))) == 0, "a list of so many elements would take several slices"
    assert len(list(_keys(body, 3))) >= 100_000 // 16_384


def test_escaped_quotes_need_no_second_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumage_router.request.body.json.loads", lambda *_, **__: pytest.fail("the slow parser"))
    assert parse_body(b'{"user":"\\u0022","metadata":[{},{}]}') == {"user": '"', "metadata": [{}, {}]}
