"""`scripts/cluster.sh COMMAND`: what a person or a Makefile does with the cluster."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from cluster import images, lifecycle, programs
from cluster.cache import bin_folder, say
from cluster.errors import ClusterError

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except ClusterError as error:
        say(str(error))
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster.sh", description="A Kubernetes cluster for tests.")
    commands = parser.add_subparsers(required=True)
    up = commands.add_parser("up", help="start it, and print what a shell evaluates")
    up.add_argument("--nodes", type=int, default=2)
    up.add_argument("--proxy", choices=["nftables", "iptables"], default="nftables", help="how Services are reached")
    up.set_defaults(run=_up)
    commands.add_parser("down", help="end it").set_defaults(run=_down)
    inside = commands.add_parser("exec", help="run a command where pods and Services are reached")
    inside.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    inside.set_defaults(run=_exec)
    bring = commands.add_parser("import", help="make images that docker, podman or buildah built images of the nodes")
    bring.add_argument("names", nargs="+", metavar="IMAGE")
    bring.set_defaults(run=_import)
    make = commands.add_parser("programs", help="download or build the programs into the cache")
    make.add_argument("set", choices=programs.SETS)
    make.add_argument("--check", action="store_true", help="only say whether all of them are there")
    make.set_defaults(run=_programs)
    return parser


def _up(options: argparse.Namespace) -> int:
    start = time.monotonic()
    cluster = lifecycle.start(lifecycle.default_run(), options.nodes, proxy=options.proxy)
    say(f"{options.nodes} nodes are Ready after {time.monotonic() - start:.1f} s")
    say("pods and Services are reached by: scripts/cluster.sh exec curl http://SERVICE.NAMESPACE.svc.cluster.local")
    print(f"export KUBECONFIG={cluster.kubeconfig} PATH={bin_folder()}:$PATH")
    return 0


def _down(_options: argparse.Namespace) -> int:
    ended = lifecycle.stop(lifecycle.default_run())
    say(f"{lifecycle.default_run()}: {'ended' if ended else 'none ran'}")
    return 0


def _exec(options: argparse.Namespace) -> int:
    cluster = lifecycle.running(lifecycle.default_run())
    if cluster is None:
        raise ClusterError(f"none runs in {lifecycle.default_run()}: make cluster")
    command = cluster.enter(options.words or [os.environ.get("SHELL", "/bin/sh")])
    os.execvp(command[0], command)


def _import(options: argparse.Namespace) -> int:
    for name in options.names:
        images.import_image(name, lifecycle.images_folder())
    return 0


def _programs(options: argparse.Namespace) -> int:
    (programs.required if options.check else programs.ensure)(programs.SETS[options.set])
    say(f"programs are in {bin_folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
