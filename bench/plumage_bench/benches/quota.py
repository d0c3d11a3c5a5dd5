"""Whether a tenant's quota holds over three routers: real processes, a real directory, twice the load that is allowed.

One tenant has a limit of requests, another one of tokens. Most of the load reaches one router. Each whole minute of the
clock is one measurement. In the last minute the directory is gone, and each router admits its share.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx

from plumage.directory.server.local_server import LocalServer
from plumage.errors import ConfigurationError
from plumage_bench.guarded import GUARDED
from plumage_bench.harness import Context, Report, ResultTable
from plumage_bench.ours import Ours
from plumage_bench.quantiles import quantile

__all__ = ["OURS", "run"]

REQUESTS, TOKENS = 900, 120_000  # a minute
OVERLOAD: Final = 2.0  # load ÷ limit
SHARES: Final = (0.6, 0.3, 0.1)  # of the load, by router
PROMPT_WORDS: Final = (20, 400)
ANSWER_TOKENS: Final = (5, 60)
MEAN_TOKENS: Final = 330  # of a prompt and its answer, about
MODEL, FOLDER = "tiny-chat", "builtin://tiny-chat"
OURS = Ours(
    {
        "router.auth": {"apiKeysRef": {"name": "keys", "key": "keys"}},
        "quotas": [
            {"tenant": "requests", "requestsPerMinute": REQUESTS},
            {"tenant": "tokens", "tokensPerMinute": TOKENS},
        ],
    }
)
TENANTS: Final = {"requests": REQUESTS, "tokens": TOKENS}
_START_S = 30.0
_TICK = 0.02  # seconds between sends


@dataclass
class Minute:
    """What one tenant got in one minute. used: requests or tokens. waits: seconds of admitted requests."""

    tenant: str
    number: int
    away: bool
    used: int = 0
    admitted: int = 0
    refused: int = 0
    other: int = 0
    waits: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the limit."""
        return self.used / TENANTS[self.tenant]


def run(context: Context) -> Report:
    """ConfigurationError if a router does not start."""
    minutes = 2 if context.quick else 5
    with TemporaryDirectory(prefix="plm-quota-") as folder:
        found = asyncio.run(_measure(context, Path(folder), minutes))
    shared = [one for one in found if not one.away]
    away = [one for one in found if one.away]
    errors = {name: max(abs(one.share - 1) for one in shared if one.tenant == name) for name in TENANTS}
    waits = [wait for one in shared for wait in one.waits]
    return Report(
        keys={
            "error": max(errors.values()),
            "requests_error": errors["requests"],
            "tokens_error": errors["tokens"],
            "over_away": max(max(0.0, one.share - 1) for one in away),
            "least_away": min(one.share for one in away),
            "p99_ms": 1000 * quantile(waits, 0.99),
            "other": sum(one.other for one in found),
        },
        tables=(_table(found),),
        plot=lambda figure: _plot(figure, found),
        data={
            "ours": OURS.listed(),
            "minutes": [
                {
                    name: getattr(one, name)
                    for name in ("tenant", "number", "away", "used", "admitted", "refused", "other")
                }
                for one in found
            ],
        },
    )


async def _measure(context: Context, folder: Path, minutes: int) -> list[Minute]:
    rng = random.Random(context.seed)
    engine = await asyncio.start_server(_Engine(rng).serve, "127.0.0.1", 0)
    with LocalServer() as directory:
        async with _routers(folder, directory.url, engine.sockets[0].getsockname()[1]) as ports:
            found = {(name, number): Minute(name, number, number > minutes)
                     for name in TENANTS for number in range(minutes + 2)}  # fmt: skip
            start = 60 * ((time.time() + 20) // 60 + 1)
            with context.progress("quota", minutes + 2) as advance:
                await _wait(start - 10)  # in the seconds before, each router learns the size of a token
                sending = asyncio.ensure_future(_send(rng, ports, start + 60 * (minutes + 2), start, found))
                for number in range(minutes + 2):
                    await _wait(start + 60 * (number + 1) - (5 if number == minutes else 0))
                    if number == minutes:
                        directory.stop()
                    advance(1)
                await sending
    engine.close()
    return [one for (_, number), one in found.items() if number != minutes]  # in that one the directory ended


async def _wait(until: float) -> None:
    await asyncio.sleep(max(0.0, until - time.time()))


class _Engine:
    """Answers at once, and counts tokens that differ a little from what a router expects."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                await reader.readexactly(size)
                usage = {
                    "prompt_tokens": round(size / self._rng.uniform(3.5, 4.5)),
                    "completion_tokens": self._rng.randint(*ANSWER_TOKENS),
                }
                body = json.dumps({"id": "c", "object": "chat.completion", "choices": [], "usage": usage}).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(body), body)
                )


@asynccontextmanager
async def _routers(folder: Path, directory: str, engine: int) -> AsyncIterator[list[int]]:
    """Three routers of one pool. Returns their ports."""
    (folder / "members.json").write_text(
        json.dumps({"pool": "bench", "replicas": [{"id": "bench-0", "url": f"http://127.0.0.1:{engine}"}]})
    )
    (folder / "keys").write_text("".join(f"{name} key-{name}\n" for name in TENANTS))
    (folder / "salt").write_text(secrets.token_hex() + "\n")
    with ExitStack() as stack:
        logs = [stack.enter_context(_router(folder, number, directory)) for number in range(len(SHARES))]
        yield [await _port(log) for log in logs]


@contextmanager
def _router(folder: Path, number: int, directory: str) -> Iterator[Path]:
    """Starts one router. Returns its log."""
    config = OURS.router(
        FOLDER, directory, 0, pool="bench", model={"name": MODEL, "modelFolder": FOLDER}, seed=number,
        membershipFile=str(folder / "members.json"), saltKeyFile=str(folder / "salt"),
        auth={"apiKeysFile": str(folder / "keys")},
    )  # fmt: skip
    path, log = folder / f"router-{number}.json", folder / f"router-{number}.log"
    path.write_text(json.dumps(config))
    command = [*GUARDED, sys.executable, "-m", "plumage_router", "--config", str(path)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield log
    finally:
        process.terminate()
        process.wait(_START_S)


async def _port(log: Path) -> int:
    """The port that a router's log names."""
    deadline = time.monotonic() + _START_S
    text = ""
    while time.monotonic() < deadline:
        text = await asyncio.to_thread(log.read_text)
        for line in text.splitlines():
            if ": listening on " in line:
                return int(line.rpartition(":")[2])
        await asyncio.sleep(0.1)
    raise ConfigurationError(f"a router did not start: {text[-500:]}")


async def _send(
    rng: random.Random, ports: Sequence[int], end: float, start: float, found: Mapping[tuple[str, int], Minute]
) -> None:
    """Sends both tenants' requests until `end`, each to a router by its share of the load."""
    rates = {"requests": OVERLOAD * REQUESTS / 60, "tokens": OVERLOAD * TOKENS / MEAN_TOKENS / 60}
    limits = httpx.Limits(max_connections=200)
    tasks: set[asyncio.Task[None]] = set()
    async with httpx.AsyncClient(limits=limits, timeout=20.0, trust_env=False) as client:
        due = dict.fromkeys(rates, time.time())
        while (now := time.time()) < end:
            for tenant, rate in rates.items():
                while due[tenant] <= now:
                    due[tenant] += rng.expovariate(rate)
                    [port] = rng.choices(ports, SHARES)
                    words = rng.randint(*PROMPT_WORDS)
                    task = asyncio.ensure_future(_ask(client, port, tenant, words, start, found))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            await asyncio.sleep(_TICK)
        await asyncio.gather(*tasks)


async def _ask(
    client: httpx.AsyncClient,
    port: int,
    tenant: str,
    words: int,
    start: float,
    found: Mapping[tuple[str, int], Minute],
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "word " * words}], "max_tokens": ANSWER_TOKENS[1]}
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"authorization": f"Bearer key-{tenant}"}
    at = time.time()
    try:
        answer = await client.post(url, json=body, headers=headers)
    except httpx.TransportError:
        answer = None
    minute = found.get((tenant, int((time.time() - start) // 60)))
    if minute is None:  # before the first minute, or after the last
        return
    if answer is None:
        minute.other += 1
    elif answer.status_code == 200:
        usage = answer.json()["usage"]
        minute.admitted += 1
        minute.used += 1 if tenant == "requests" else usage["prompt_tokens"] + usage["completion_tokens"]
        minute.waits.append(time.time() - at)
    elif answer.status_code == 429:
        minute.refused += 1
    else:
        minute.other += 1


def _table(found: Sequence[Minute]) -> ResultTable:
    rows = [
        (one.tenant, one.number, "away" if one.away else "answers", one.admitted, one.refused, one.other, one.used,
         round(one.share, 4))
        for one in found
    ]  # fmt: skip
    return ResultTable(
        f"Three routers with {SHARES} of {OVERLOAD:g} × the limits: {REQUESTS} requests, {TOKENS:,} tokens a minute",
        ("limit of", "minute", "directory", "admitted", "refused", "other answers", "used", "used ÷ limit"),
        rows,
        "While the directory is away each router admits a third. The router with a tenth of the load can't use it.",
    )


def _plot(figure: Any, found: Sequence[Minute]) -> None:
    axes = figure.subplots()
    for name in TENANTS:
        mine = [one for one in found if one.tenant == name]
        axes.plot([one.number for one in mine], [one.share for one in mine], marker="o", label=f"limit of {name}")
    axes.axhline(1.0, linestyle="--", color="black", label="the limit")
    axes.set(xlabel="minute; the directory is away in the last one", ylabel="used ÷ limit")
    axes.legend()
