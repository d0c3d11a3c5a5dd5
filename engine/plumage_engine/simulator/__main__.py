"""`python -m plumage_engine.simulator --config FILE.json`: serve one simulated engine until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from pathlib import Path

import uvicorn

from plumage.errors import ConfigurationError
from plumage.settings.simulator_config import SimulatorConfig
from plumage_engine.certificates import ReloadedContext, server_context
from plumage_engine.configuration import read_file
from plumage_engine.simulator.http.server import make_app

__all__ = ["main"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m plumage_engine.simulator", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the engine's configuration, JSON")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = read_file(arguments.config, SimulatorConfig)
        app = make_app(config)
        tls = _tls(config)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn ends gracefully, then raises the signal again
    server = _Server(
        uvicorn.Config(
            app,
            host=config.host,
            port=config.port,
            loop="uvloop",
            http="httptools",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=int(config.shutdown_seconds),
        ),
        tls,
    )
    server.run()
    return 0 if server.started else 3  # uvicorn's own code for a failed start


class _Server(uvicorn.Server):
    """A server whose certificate may change while it runs; tls: None for plain HTTP."""

    def __init__(self, config: uvicorn.Config, tls: ReloadedContext | None) -> None:
        super().__init__(config)
        self._tls = tls
        if tls is not None:
            config.load()
            config.ssl = tls.context

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        renewals = None if self._tls is None else asyncio.create_task(self._tls.run())
        try:
            await super().serve(sockets)
        finally:
            if renewals is not None:
                renewals.cancel()


def _tls(config: SimulatorConfig) -> ReloadedContext | None:
    tls = config.tls
    return None if tls is None else server_context(tls.certificate_file, tls.key_file, tls.client_ca_file)


if __name__ == "__main__":
    sys.exit(main())
