"""A pool on this machine for a benchmark, started from a manifest by `plumage up`, as a user would start it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from plumage_cli.errors import CliError
from plumage_cli.local.control.client import ask
from plumage_cli.local.processes.ports import free_ports

__all__ = ["LocalPool", "local_pool"]

_UP, _DOWN = 120.0, 60.0  # seconds for the pool to start, and to end


@dataclass(frozen=True, slots=True)
class LocalPool:
    """folder: the pool's own. port: the clients'. process: the supervisor, `plumage up`. log: what it wrote."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def view(self) -> Mapping[str, Any]:
        """What `plumage status` shows. CliError if the supervisor does not answer."""
        return ask(self.folder, {"do": "status"}, timeout=20.0)

    def until_well(self, seconds: float) -> bool:
        """Whether all parts of the pool run within that time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if _is_well(self.view()):
                    return True
            except (CliError, OSError):
                pass
            time.sleep(0.2)
        return False


@contextmanager
def local_pool(runtime: Path, spec: Mapping[str, Any], name: str, *options: str) -> Iterator[LocalPool]:
    """A pool with this `spec` of its manifest, which ends with the block.

    runtime: a folder with a short path, since sockets are in it. options: more for `plumage up`. CliError if the pool
    does not start.
    """
    pool = {"apiVersion": "inference.plumage.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}}
    manifest, (port,) = runtime / f"{name}.yaml", free_ports(1, (), start=random.SystemRandom().randrange(12_000))
    manifest.write_text(yaml.safe_dump({**pool, "spec": dict(spec)}))
    command = [sys.executable, "-m", "plumage_cli", "up", str(manifest), f"--port={port}", *options]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
    written = runtime / f"{name}.log"
    with written.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    made = LocalPool(runtime / "plumage" / name, port, process, written)
    try:
        if not made.until_well(_UP):
            raise CliError(f"the pool did not come up:\n{written.read_text()[-2000:]}")
        yield made
    finally:
        process.send_signal(signal.SIGINT)  # nothing happens if it has ended
        with suppress(subprocess.TimeoutExpired):
            process.wait(_DOWN)
        process.kill()
        process.wait()


def _is_well(view: Mapping[str, Any]) -> bool:
    parts = [
        *(view["routers"] or (None,)),
        view["directory"],
        *(one[role] for one in view["replicas"] for role in ("engine", "agent")),
    ]
    running = all(part is not None and part["state"] == "Running" and part["pid"] for part in parts)
    ready = all(one["state"] == "Ready" for one in view["replicas"])
    return running and ready and not view["problems"] and view["traffic"].get("directory") == "Fresh"
