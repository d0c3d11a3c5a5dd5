"""`python -m plumage_engine.agent --config FILE.json`: runs one agent until SIGTERM or SIGINT.

Exit codes:

- 0: after a signal.
- 1: it can't go on, since another agent of the same replica took over.
- 2: the configuration can't work.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
import uvloop
from starlette.applications import Starlette

from plumage.directory.client.tasks import end
from plumage.errors import ConfigurationError
from plumage.settings.agent_config import AgentConfig
from plumage_engine.agent.agent import Agent
from plumage_engine.agent.http.access import Access
from plumage_engine.agent.http.routes import make_app
from plumage_engine.agent.pod_token import ensure_token
from plumage_engine.agent.tokenizer import read_tokenizer
from plumage_engine.configuration import read_file

__all__ = ["AgentServer", "collect_seldom", "main", "make_server", "serve"]

log = logging.getLogger("plumage_engine.agent")


class AgentServer(uvicorn.Server):
    """Leaves signals to the agent: uvicorn would end the process before the directory is updated. It sleeps until it is
    stopped, where uvicorn wakes up ten times a second, because the engine needs the CPU."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # it makes the default headers
        await self._stopped.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def collect_seldom() -> None:
    """Hundreds of thousands of blocks live long and form no cycles, so old objects are scanned after two million new
    ones. Young ones are scanned more often. Each check of the engine leaves a hundred objects of httpx in cycles. They
    were 15 MB before a hundred thousand of them were collected."""
    gc.set_threshold(10_000, 200, 100)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m plumage_engine.agent", description="The agent beside one engine.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see plumage.settings.agent_config")
    parser.add_argument("--replica", help="this replica's id, which replaces the file's: in a cluster its pod's name")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    options = parser.parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    collect_seldom()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log every check of the engine
    try:
        return uvloop.run(serve(read_file(options.config, AgentConfig, replica=options.replica), options.config))
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return 2


async def serve(config: AgentConfig, file: Path | None = None) -> int:
    """Run until a signal arrives, or the agent or its server ends. Returns the exit code; raises their errors.

    file: of the settings."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if config.token_file is not None:
        ensure_token(config.token_file)
    agent = Agent(config, await asyncio.to_thread(read_tokenizer, config.model_folder), file=file)
    server = make_server(make_app(agent, Access.of(config)), config.listen.host, config.listen.port)
    agent.start()
    return await _until_stopped(agent, server, stopped)


def make_server(app: Starlette, host: str, port: int) -> AgentServer:
    """An HTTP server for the agent's routes, without signal handlers and bounded."""
    return AgentServer(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            date_header=False,  # uvicorn would send the time of the start
            lifespan="off",
            timeout_graceful_shutdown=2,
            limit_concurrency=256,
        )
    )


async def _until_stopped(agent: Agent, server: AgentServer, stopped: asyncio.Event) -> int:
    waits = {
        name: asyncio.create_task(work, name=name)
        for name, work in (("signal", stopped.wait()), ("agent", agent.wait()), ("http", _listen(server)))
    }
    try:
        await asyncio.wait(waits.values(), return_when=asyncio.FIRST_COMPLETED)
        for task in waits.values():
            if task.done():
                task.result()
        return 0 if stopped.is_set() else 1
    finally:
        server.stop()
        with suppress(Exception):
            await waits["http"]
        await end(waits.values())
        await agent.close()


async def _listen(server: AgentServer) -> None:
    try:
        await server.serve()
    except SystemExit as error:  # how uvicorn says that it can't bind
        where = f"{server.config.host}:{server.config.port}"
        raise ConfigurationError(
            f"can't listen on {where}: choose another listen.port, or stop what uses it"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
