"""A pool in local mode, started by the real command, and the load of a real client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from support.ports import free_port

from plumage_cli.demo.client import Outcome, send_load
from plumage_cli.demo.load import Session
from plumage_cli.errors import CliError
from plumage_cli.local.control.client import ask
from plumage_cli.local.pool_view import router_name
from plumage_cli.manifests import read_pool

ROOT = Path(__file__).parents[2]
UP_SECONDS = 60.0
Condition = Callable[[dict[str, Any]], Any]
_TLS = ssl.create_default_context()  # not used here, and it takes longer to make one than to send a request


class Pool:
    """`plumage up` in a child process, with its own state folder. manifest: a file of examples/. model: instead of it,
    for `--model`."""

    def __init__(
        self,
        runtime: Path,
        manifest: str = "local.yaml",
        *,
        model: str | None = None,
        routers: int = 1,
        **changes: object,
    ) -> None:
        self.runtime = runtime
        path = ROOT / "examples" / manifest
        self.name = read_pool(path).metadata.name if model is None else "chat"
        self.port = free_port()
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "PYTHONWARNINGS": "default"}
        sets = [f"--set={path.replace('__', '.')}={value}" for path, value in changes.items()]
        source = str(path) if model is None else f"--model={model}"
        command = ["up", source, f"--port={self.port}", f"--routers={routers}", *sets]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "plumage_cli", *command],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def folder(self) -> Path:
        return self.runtime / "plumage" / self.name

    def run(self, *arguments: str, seconds: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Runs another `plumage` command on the same pool."""
        command = [sys.executable, "-m", "plumage_cli", *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=seconds, check=False
        )

    def view(self) -> dict[str, Any]:
        return ask(self.folder, {"do": "status"}, timeout=5.0)

    def wait(self, condition: Condition, seconds: float = UP_SECONDS) -> dict[str, Any]:
        """Waits until the view fulfils the condition, and returns the view."""
        deadline = time.monotonic() + seconds
        view: dict[str, Any] = {}
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"plumage up ended:\n{self.finish()}"
            try:
                view = self.view()
                if condition(view):
                    return view
            except (CliError, KeyError):
                pass
            time.sleep(0.05 if seconds <= UP_SECONDS else 0.5)  # real engines start for half a minute
        raise AssertionError(f"not within {seconds} s: {json.dumps(view)[:4000]}")

    async def until(self, condition: Condition, seconds: float = UP_SECONDS) -> dict[str, Any]:
        return await asyncio.to_thread(self.wait, condition, seconds)

    def pids(self) -> dict[str, int]:
        """The pids of the pool's processes with this name, also the supervisor's."""
        view = self.view()
        named = {"supervisor": view["pid"], "directory": view["directory"]["pid"]}
        named |= {router_name(number): router["pid"] for number, router in enumerate(view["routers"])}
        for replica in view["replicas"]:
            named[f"engine {replica['id']}"] = replica["engine"]["pid"]
            named[f"agent {replica['id']}"] = replica["agent"]["pid"]
        return {name: pid for name, pid in named.items() if pid is not None}

    def stop(self, number: int = signal.SIGINT, seconds: float = 60.0) -> int:
        """Sends a signal, by default the one that Ctrl-C sends, and returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.finish(seconds)
        return self.process.returncode

    def finish(self, seconds: float = 30.0) -> str:
        if self.process.stdout is not None and not self.process.stdout.closed:
            output, _ = self.process.communicate(timeout=seconds)
            self.output += output
        return self.output


@contextmanager
def ready_pool(runtime: Path, replicas: int, *, routers: int = 1, **changes: str) -> Iterator[Pool]:
    """A pool of examples/local.yaml with all its replicas ready. It is killed at the end if it still runs."""
    pool = Pool(runtime, routers=routers, spec__replicas=replicas, **changes)
    try:
        pool.wait(whole(replicas))
        yield pool
    finally:
        pool.process.kill()
        pool.finish()


@asynccontextmanager
async def directory_down(pool: Pool) -> AsyncIterator[None]:
    """Kills the directory's server. It can not start again until the block ends: a file has the name of its folder."""
    folder = pool.folder / "dir"
    pid = (await asyncio.to_thread(pool.view))["directory"]["pid"]
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(60.0):
        while not _blocked(folder):
            now = (await asyncio.to_thread(pool.view))["directory"]["pid"]
            if now not in (None, pid):  # it was started again in between
                os.kill(pid := now, signal.SIGKILL)
            await asyncio.sleep(0.005)
    try:
        yield
    finally:
        folder.unlink()


def _blocked(folder: Path) -> bool:
    try:
        folder.touch(exist_ok=False)
    except FileExistsError:  # the killed server's folder, or a restarted server's
        return False
    return True


def whole(replicas: int) -> Condition:
    """All replicas are Ready, and the router knows it."""

    def condition(view: dict[str, Any]) -> bool:
        seen = view["traffic"].get("replicas", [])
        return (
            len(view["replicas"]) == replicas == len(seen)
            and all(replica["state"] == "Ready" for replica in view["replicas"])
            and all(replica["state"] == "Ready" and replica["why"] is None for replica in seen)
            and view["traffic"]["directory"] == "Fresh"
        )

    return condition


def gone(pids: dict[str, int], seconds: float = 30.0) -> dict[str, int]:
    """Those of these processes that still run after a while; there should be none."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        left = {name: pid for name, pid in pids.items() if _runs(pid)}
        if not left:
            return {}
        time.sleep(0.05)
    return left


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def leftovers(runtime: Path, seconds: float = 0.0) -> list[str]:
    """Processes whose command line still has the state folder after a while. No process of a pool may outlive it."""
    deadline = time.monotonic() + seconds
    while (found := _mentioning(runtime)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _mentioning(runtime: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if str(runtime) in command and process.info["pid"] != os.getpid():
            found.append(command)
    return found


def prompts(count: int, *, seed: int, words: int = 500, at: float = 0.0, answer_tokens: int = 8) -> list[Session]:
    """Requests without a common prefix, so that each has a prefill to lose."""
    return [
        Session(
            at,
            "unique",
            f"{seed} {number} " + "lorem ipsum dolor " * (words // 3),
            ("What then?",),
            (0.0,),
            answer_tokens,
        )
        for number in range(count)
    ]


async def load(
    pool: Pool,
    sessions: list[Session],
    accident: Callable[[], None] | None = None,
    after: int = 5,
    model: str = "tiny-chat",
) -> list[Outcome]:
    """Sends the requests. Calls `accident` once `after` requests are answered."""
    answered = 0

    def done(outcome: Outcome) -> None:
        nonlocal answered
        answered += 1
        if accident is not None and answered == after:
            accident()

    return await send_load(pool.url, model, sessions, done=done)


def lost(outcomes: list[Outcome]) -> list[str]:
    return [outcome.error for outcome in outcomes if outcome.error is not None]


def busiest(pool: Pool) -> dict[str, Any]:
    """The replica with the most requests from the router."""
    view = pool.view()
    flying = {replica["id"]: replica["inFlight"] for replica in status(pool)["replicas"]}
    return max(view["replicas"], key=lambda replica: flying[replica["id"]])


def status(pool: Pool) -> dict[str, Any]:
    """The router's own status, not the supervisor's copy, which may be a second old."""
    key = (pool.folder / "admin.key").read_text().strip()
    reply = httpx.get(
        f"{pool.url}/plumage/v1/status", headers={"Authorization": f"Bearer {key}"}, timeout=10.0, verify=_TLS
    )
    document: dict[str, Any] = reply.raise_for_status().json()
    return document
