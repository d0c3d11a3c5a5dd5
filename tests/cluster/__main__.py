"""`python -m cluster COMMAND`, with the folder `tests` on PYTHONPATH."""

from __future__ import annotations

import argparse
import sys

from cluster import programs
from cluster.cache import bin_folder, say
from cluster.errors import ClusterError

__all__ = ["main"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster", description="A Kubernetes cluster for tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("programs", help="download or build the programs into the cache")
    make.add_argument("set", choices=programs.SETS)
    options = parser.parse_args()
    try:
        programs.ensure(programs.SETS[options.set])
    except ClusterError as error:
        say(str(error))
        return 1
    say(f"programs are in {bin_folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
