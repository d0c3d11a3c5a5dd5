"""`python -m plumage_engine.simulator --config FILE.json`: serve one simulated engine until SIGTERM."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

import uvicorn

from plumage.errors import ConfigurationError
from plumage.settings.simulator_config import SimulatorConfig
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
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn ends gracefully, then raises the signal again
    uvicorn.run(
        app,
        host=config.host,
        port=config.port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(config.shutdown_seconds),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
