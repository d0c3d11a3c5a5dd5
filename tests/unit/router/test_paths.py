"""Which requests read or cancel a stored response, and what of them an engine gets."""

from __future__ import annotations

import pytest

from plumage_router.http.paths import response_call


@pytest.mark.parametrize(
    ("method", "target", "path", "stream"),
    [
        (b"GET", b"/v1/responses/resp_1", b"/v1/responses/resp_1", False),
        (b"GET", b"/v1/responses/resp_1?", b"/v1/responses/resp_1", False),
        (b"GET", b"/v1/responses/resp_1?include=a&stream=false", b"/v1/responses/resp_1", False),
        (b"GET", b"/v1/responses/resp_1?stream=True", b"/v1/responses/resp_1?stream=true", True),
        (b"GET", b"/v1/responses/r?x=%0d%0a&starting_after=7&stream=1",
         b"/v1/responses/r?stream=true&starting_after=7", True),
        (b"GET", b"/v1/responses/r?stream=true&starting_after=-1", b"/v1/responses/r?stream=true", True),
        (b"GET", b"/v1/responses/r?stream=true&starting_after=%31%0d", b"/v1/responses/r?stream=true", True),
        (b"POST", b"/v1/responses/resp_1/cancel?stream=true", b"/v1/responses/resp_1/cancel", False),
    ],
)  # fmt: skip
def test_engine_gets_only_what_vllm_reads(method: bytes, target: bytes, path: bytes, stream: bool) -> None:
    call = response_call(method, target)
    assert call is not None
    assert (call.method, call.path, call.stream) == (method, path, stream)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        (b"POST", b"/v1/responses"),
        (b"GET", b"/v1/responses"),
        (b"GET", b"/v1/responses/"),
        (b"POST", b"/v1/responses/resp_1"),
        (b"GET", b"/v1/responses/resp_1/cancel"),
        (b"DELETE", b"/v1/responses/resp_1"),
        (b"HEAD", b"/v1/responses/resp_1"),
        (b"GET", b"/v1/responses/resp_1/input_items"),
        (b"GET", b"/v1/responses/" + b"a" * 513),
    ],
)
def test_other_requests_are_none(method: bytes, target: bytes) -> None:
    assert response_call(method, target) is None


def test_name_is_unquoted() -> None:
    call = response_call(b"GET", b"/v1/responses/a%20b%E9")
    assert call is not None
    assert call.name == "a b\ufffd"
