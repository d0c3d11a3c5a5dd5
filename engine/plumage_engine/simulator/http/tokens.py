"""vLLM's `/tokenize` and `/detokenize`, with the tokenizer of the simulated model."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from plumage_engine.simulator.http.completions import ClientGoneError, read
from plumage_engine.simulator.http.prompts import Prompts
from plumage_engine.simulator.http.protocol import ApiError, read_body, read_generation

__all__ = ["Tokens"]


class Tokens:
    """The two endpoints. As in vLLM, a text may be longer than the context."""

    def __init__(self, prompts: Prompts, max_body_bytes: int) -> None:
        self._prompts = prompts
        self._most = max_body_bytes

    async def tokenize(self, request: Request) -> Response:
        body = await self._body(request)
        if body is None:
            return Response(status_code=499)
        ids = await self._prompts.tokens_of(read_generation(body, chat="messages" in body))
        strings = self._prompts.strings_of(ids) if body.get("return_token_strs") is True else None
        answer = {"count": len(ids), "max_model_len": self._prompts.max_model_len, "tokens": ids, "token_strs": strings}
        return Response(orjson.dumps(answer), media_type="application/json")

    async def detokenize(self, request: Request) -> Response:
        body = await self._body(request)
        if body is None:
            return Response(status_code=499)
        ids = body.get("tokens")
        if not isinstance(ids, list) or any(type(one) is not int or one < 0 for one in ids):
            raise ApiError(400, "tokens must be a list of token ids", param="tokens")
        model = body.get("model") or ""
        if not isinstance(model, str):
            raise ApiError(400, "model must be a string", param="model")
        answer = {"prompt": self._prompts.text_of(ids, model)}
        return Response(orjson.dumps(answer), media_type="application/json")

    async def _body(self, request: Request) -> dict[str, Any] | None:
        """The body; None if the client has left."""
        try:
            return read_body(await read(request.receive, self._most))
        except ClientGoneError:
            return None
