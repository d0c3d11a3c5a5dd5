"""Requests to a pool whose clients record how much each received: a request may be retried only before its first
byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from support.pool import Pool

from plumage_cli.demo.load import Session

__all__ = ["Sender", "Sent", "sending"]


@dataclass
class Sent:
    """One streaming request. begun: its first piece arrived. whole: all of it arrived. error: why it did not."""

    begun: bool = False
    whole: bool = False
    error: str | None = None

    @property
    def lost(self) -> bool:
        """It failed, and a retry was still possible."""
        return self.error is not None and not self.begun


class Sender:
    """Starts requests; `sent` has all of them. No request is sent again."""

    def __init__(self, client: httpx.AsyncClient, users: asyncio.TaskGroup) -> None:
        self.sent: list[Sent] = []
        self._client = client
        self._users = users

    def send(self, session: Session) -> None:
        """Sends the session's first turn in the background."""
        self.sent.append(Sent())
        self._users.create_task(self._follow(session, self.sent[-1]))

    @property
    def lost(self) -> list[str | None]:
        return [one.error for one in self.sent if one.lost]

    async def _follow(self, session: Session, sent: Sent) -> None:
        messages = [{"role": "system", "content": session.system}, {"role": "user", "content": session.turns[0]}]
        body = {"model": "tiny-chat", "messages": messages, "max_tokens": session.answer_tokens, "stream": True}
        try:
            async with self._client.stream("POST", "/v1/chat/completions", json=body) as reply:
                await self._read(reply, sent)
        except httpx.HTTPError as error:
            sent.error = f"{type(error).__name__}: {error}"

    async def _read(self, reply: httpx.Response, sent: Sent) -> None:
        if reply.status_code != 200:
            sent.error = f"{reply.status_code}: {(await reply.aread())[:300]!r}"
            return
        async for line in reply.aiter_lines():
            if line.startswith("data: {") and "error" in json.loads(line.removeprefix("data: ")):
                sent.error = line
            sent.begun = sent.begun or (line.startswith("data: {") and sent.error is None)
            sent.whole = sent.whole or line == "data: [DONE]"
        if not sent.whole and sent.error is None:
            sent.error = "it ended early"


@asynccontextmanager
async def sending(pool: Pool) -> AsyncIterator[Sender]:
    """A sender. The end of the block waits for its requests."""
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=pool.url, timeout=120.0, limits=limits, trust_env=False) as client,
        asyncio.TaskGroup() as users,
    ):
        yield Sender(client, users)
