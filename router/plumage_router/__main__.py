"""`python -m plumage_router --config FILE.json`: one router process."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import uvloop

from plumage.errors import ConfigurationError
from plumage_router.config import is_multi_pool, load_config, load_multi_pool
from plumage_router.multi_pool.server import MultiPoolServer
from plumage_router.server import run, serve


def main() -> int:
    """Returns 0 after an orderly end, 2 for an invalid configuration."""
    parser = argparse.ArgumentParser(prog="plumage_router", description="The router of one pool, or of several.")
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        help="a JSON file, see plumage.settings.router_config: RouterConfig, or with `gateway` in it MultiPoolConfig",
    )
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    parser.add_argument("--id", default=os.environ.get("POD_NAME"), help="this router's name; default: $POD_NAME")
    arguments = parser.parse_args()
    logging.basicConfig(level=arguments.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        uvloop.run(_serve(arguments.config, arguments.id))
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


async def _serve(file: Path, name: str | None) -> None:
    if is_multi_pool(file):
        await run(MultiPoolServer(load_multi_pool(file), file, name=name))
    else:
        await serve(load_config(file), file, name=name)


if __name__ == "__main__":
    sys.exit(main())
