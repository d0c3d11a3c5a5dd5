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
    """One streaming request. begun: its first piece arrived. whole: the complete answer arrived. error: why it did not.
    again: the number of times it was sent again, because no server listened or the connection broke before the first
    piece."""

    begun: bool = False
    whole: bool = False
    error: str | None = None
    again: int = 0

    @property
    def lost(self) -> bool:
        """It failed, and a retry was still possible."""
        return self.error is not None and not self.begun


class Sender:
    """Starts requests; `sent` holds all of them. `patient`: clients send again while there is no router and no piece
    arrived. A router's answer is final."""

    def __init__(self, client: httpx.AsyncClient, users: asyncio.TaskGroup, patient: bool) -> None:
        self.sent: list[Sent] = []
        self._client = client
        self._users = users
        self._patient = patient

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
        while not sent.whole and sent.error is None:
            try:
                async with self._client.stream("POST", "/v1/chat/completions", json=body) as reply:
                    await self._read(reply, sent)
            except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
                await self._broken(sent, error)
            except httpx.HTTPError as error:
                sent.error = f"{type(error).__name__}: {error}"

    async def _broken(self, sent: Sent, error: Exception) -> None:
        if sent.begun or not self._patient:
            sent.error = f"{type(error).__name__}: {error}"
            return
        sent.again += 1
        await asyncio.sleep(0.1)

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
async def sending(pool: Pool, *, patient: bool = False) -> AsyncIterator[Sender]:
    """A sender. The end of the block waits for its requests."""
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=pool.url, timeout=120.0, limits=limits, trust_env=False) as client,
        asyncio.TaskGroup() as users,
    ):
        yield Sender(client, users, patient)
