"""The runtime's server: `python -m cluster.cri`, one for each node. On SIGTERM it stops its containers."""

from __future__ import annotations

import argparse
import concurrent.futures
import logging
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import grpc

from cluster.cri import memory, stubs
from cluster.cri.image_service import ImageService
from cluster.cri.images import ImageStore
from cluster.cri.network import PodNetworks
from cluster.cri.pods import Pods
from cluster.cri.runtime_service import RuntimeService

_log = logging.getLogger("cluster.cri")
# A stop blocks for up to its grace period, and a node may have to stop all its pods at the same time.
_THREADS = 512
_MOST_BYTES = 1 << 24


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cluster.cri", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--node-ip", required=True)
    parser.add_argument("--pod-cidr", required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True, help="on tmpfs, or another disk than the images")
    parser.add_argument("--memory-group", help="name of the group for this run's containers")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    _serve(options)


def _serve(options: argparse.Namespace) -> None:
    shutil.rmtree(options.root, ignore_errors=True)
    options.root.mkdir(parents=True)
    pods = Pods(options.root, PodNetworks(options.node_ip, options.pod_cidr))
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(max_workers=_THREADS),
        options=[("grpc.max_receive_message_length", _MOST_BYTES)],
    )
    _register(server, pods, options)
    server.add_insecure_port(f"unix://{options.socket}")
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    server.start()
    _log.info("listening on %s", options.socket)
    end.wait()
    server.stop(1)
    for pod in pods.pods():
        pods.remove(pod)


def _register(server: grpc.Server, pods: Pods, options: argparse.Namespace) -> None:
    pb, services = stubs.load()
    own = memory.own_group() if options.memory_group else None
    group = own / options.memory_group if own else None
    _log.info("memory limits are %s", f"kept under {group}" if group else "not kept: no v1 memory controller here")
    store = ImageStore(options.images)
    # The generated base classes answer Unimplemented for every method that ours do not define.
    runtime: Any = type("Runtime", (RuntimeService, services.RuntimeServiceServicer), {})
    images: Any = type("Images", (ImageService, services.ImageServiceServicer), {})
    services.add_RuntimeServiceServicer_to_server(runtime(pb, store, pods, group), server)
    services.add_ImageServiceServicer_to_server(images(pb, store), server)


if __name__ == "__main__":
    main()
