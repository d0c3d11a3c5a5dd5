"""The processes of the router benchmark: compiled, pinned to cores, started, queried, and ended."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from plumage.api.v1alpha1.exposure import TracingSpec
from plumage.api.v1alpha1.quotas import QuotaSpec
from plumage.directory.server.local_server import LocalServer
from plumage.errors import ConfigurationError
from plumage.prometheus.parser import samples
from plumage.settings.router import tracing_config
from plumage.settings.router_config import QuotaConfig
from plumage_bench.benches.router.prompts import MODEL, PREFIXES, SIZE, make_bodies, write_bodies
from plumage_bench.guarded import GUARDED
from plumage_bench.ours import Ours
from plumage_router.fleet.engine_keys import Salts
from plumage_router.http.auth import Tenant

__all__ = ["OURS_NAME", "Drive", "Rig"]

OURS = Ours()
PLAIN = Ours({"router.policy": "RoundRobin"})
"""A policy without knowledge, which shows the cost of the router itself."""
OURS_NAME = "router"
"""The target that is ours with LBGR and the directory."""
TENANT = "load"
# Every kind of limit, so that each request is counted. None refuses one.
QUOTA = QuotaSpec.model_validate(
    {
        "tenant": TENANT,
        "requestsPerMinute": 10**9,
        "tokensPerMinute": 10**12,
        "tokensPerDay": 10**12,
        "concurrentRequests": 10**9,
    }
)
API_KEY = "sk-load-0123456789abcdef0123456789abcdef"  # as in native/load.c
SMALL = 1024  # bytes of a small request's text
BESIDE = 16  # connections of the long and of the small requests that arrive together
REPLICAS = 4
POOL = "bench"
FOLDER = "builtin://tiny-chat"
_SOURCES = Path(__file__).parents[2] / "native"
_IDLE_SHARE = 0.15  # share of a core that idle agents use, with heartbeats
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Drive:
    """One run of the load generator. Latencies in µs; `cpu_micros`: the router's CPU time a request."""

    requests: int
    seconds: float
    p50: float
    p90: float
    p99: float
    max: float
    cpu_micros: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    def document(self) -> dict[str, float]:
        return {**asdict(self), "rate": self.rate}


class Rig:
    """Two routers (one with LBGR and the directory, one with round robin) before the same mock engine. size: bytes of a
    prompt's text. plain: start the second one. picks: the first one has an endpoint picker, whose port is
    `picker_port`."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        messages: Sequence[int],
        size: int = SIZE,
        *,
        plain: bool = True,
        picks: bool = False,
    ) -> None:
        self.folder = self._folder = folder
        self._plain = plain
        self.picker_port = _free_ports(1) if picks else None
        self._admin_key = folder / "admin.key"
        self._api_keys = folder / "api.keys"
        self._salt_key = folder / "salt.key"
        self._seed = seed
        self._messages = tuple(messages)
        self._size = size
        cores = sorted(os.sched_getaffinity(0))
        self._unknown = len(self._messages) * PREFIXES  # the first prefix that the agents do not know
        self._small = folder / "bodies-small"
        self._router_core, self._other_core = cores[0], cores[1]
        self._stack = ExitStack()
        self._ports: dict[str, int] = {}
        self._routers: dict[str, subprocess.Popen[bytes]] = {}
        self._next = 0
        self.preferred = False  # whether the last comparison ran at real-time priority

    def __enter__(self) -> Rig:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._admin_key.write_text(secrets.token_hex() + "\n")
        self._salt_key.write_text(secrets.token_hex() + "\n")
        self._api_keys.write_text(f"{TENANT} {API_KEY}\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Starts everything. Returns when all answer, or raises an error that names what is missing."""
        engine, _ = self._compile("engine"), self._compile("load")
        for index, messages in enumerate(self._messages):
            bodies = make_bodies(messages, self._seed, size=self._size)
            write_bodies(self._bodies(messages), bodies, index * PREFIXES)
            streams = make_bodies(messages, self._seed, stream=True, size=self._size)
            write_bodies(self._streams(messages), streams, index * PREFIXES)
            # Requests that no router sent have other prefixes, so that agents can skip them.
            write_bodies(self._direct(messages), bodies, self._unknown)
        write_bodies(self._small, make_bodies(1, self._seed, size=SMALL), self._unknown)
        self._stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, {self._other_core})  # children inherit it; routers are moved
        server = self._stack.enter_context(LocalServer())
        fifo = self._folder / "reports"
        os.mkfifo(fifo)
        self._ports["mock"] = _free_ports(REPLICAS)
        command = [engine, self._ports["mock"], REPLICAS, self._unknown + PREFIXES, fifo]
        self._engine = self._launch("engine", command, self._other_core)
        self._launch_agents(server.url, fifo)
        members = self._write_members()
        self._launch_collector()
        self._launch_router(OURS_NAME, members, OURS, server.url, tracing=self._tracing())
        if self._plain:
            self._launch_router("plain", members, PLAIN, None)

    @property
    def workers(self) -> tuple[str, ...]:
        """The URLs of the mock's replicas."""
        return tuple(f"http://127.0.0.1:{self._ports['mock'] + number}" for number in range(REPLICAS))

    def launch_peer(self, name: str, command: Callable[[int, int], Sequence[Any]], seconds: float) -> None:
        """Starts another router on the routers' core. command: from its port and one for metrics. ConfigurationError
        if it does not answer in time; its output is in the folder."""
        port = self._ports[name] = _free_ports(1)
        output = self._folder / f"{name.partition(' ')[0]}.log"
        with output.open("wb") as log:
            process = self._popen(
                command(port, _free_ports(1)), self._router_core, stdout=log, stderr=subprocess.STDOUT
            )
        self._routers[name] = process
        self._await(f"http://127.0.0.1:{port}/health", process, name, seconds)

    def compare(
        self, targets: Sequence[str], messages: int, *, seconds: float, rate: float, connections: int, seed: int
    ) -> bytes:
        """Sends `rate` requests a second to each of the targets, in rounds (native/load.c), and returns the samples.
        All processes of the measurement run at real-time priority if allowed (`preferred`), so that other work does not
        delay them."""
        ports = ",".join(str(self._ports[target]) for target in targets)
        samples = self._folder / "samples"
        arguments = (connections, seconds, rate, seed, self._next, self._bodies(messages), samples)
        preferred = [self._engine, *(self._routers[target] for target in targets if target in self._routers)]
        with _real_time(preferred) as self.preferred:
            self._load(ports, *arguments, preferred=self.preferred)
        return samples.read_bytes()

    def drive(
        self, target: str, messages: int, *, seconds: float, connections: int, seed: int, stream: bool = False
    ) -> Drive:
        """Runs the load generator against "mock", "router" or "plain", at the rate of the answers. stream: of a router;
        the mock answers with 16 events, one every 5 ms."""
        before = self.cpu(target)
        bodies = self._streams(messages) if stream else self._bodies(messages)
        if target == "mock":
            bodies = self._direct(messages)
        arguments = (connections, seconds, 0, seed, self._next, bodies, "-")
        found = self._load(self._ports[target], *arguments)
        return self._drive(found, self.cpu(target) - before)

    @staticmethod
    def _drive(found: Mapping[str, Any], cpu: float) -> Drive:
        figures = {name: found[name] for name in ("requests", "seconds", "p50", "p90", "p99", "max")}
        return Drive(**figures, cpu_micros=cpu / max(1, found["requests"]) * 1e6)

    def drive_beside(
        self, target: str, messages: int, *, seconds: float, rate: float, small_rate: float, seed: int
    ) -> Drive:
        """Sends small requests at `small_rate` while long ones arrive at `rate`. Returns the small ones' figures, with
        the CPU time of all."""
        before, port = self.cpu(target), self._ports[target]
        long = (BESIDE, seconds, rate, seed, self._next, self._bodies(messages), "-")
        running = self._start_load(port, *long)
        found = self._load(port, BESIDE, seconds - 1.0, small_rate, seed, self._next, self._small, "-")
        self._end_load(running, seconds)
        return self._drive(found, self.cpu(target) - before)

    def await_quiet_agents(self, seconds: float = 20.0) -> None:
        """Waits until the agents have published the events of a full load. They share the load generator's core, so
        their work would disturb a measurement of latency."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            before = _cpu_seconds(self._agents)
            time.sleep(0.5)
            if _cpu_seconds(self._agents) - before < _IDLE_SHARE * 0.5:
                return

    def status(self) -> dict[str, Any]:
        """The LBGR router's own status."""
        url = f"http://127.0.0.1:{self._ports['router']}/plumage/v1/status"
        asked = urllib.request.Request(url, headers={"X-Plumage-Admin-Key": self._admin_key.read_text().strip()})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    # -- inside -------------------------------------------------------------------------------------------------------

    def _load(self, *arguments: Any, preferred: bool = False) -> dict[str, Any]:
        process = self._start_load(*arguments)
        if preferred:
            os.sched_setscheduler(process.pid, os.SCHED_FIFO, os.sched_param(1))
        return self._end_load(process, float(arguments[2]))

    def _start_load(self, *arguments: Any) -> subprocess.Popen[bytes]:
        command = [self._folder / "load", *arguments]
        return self._popen(command, self._other_core, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def _end_load(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        out, err = process.communicate(timeout=seconds + 30)
        if process.returncode:
            raise ConfigurationError(f"the load generator failed: {out.decode()} {err.decode()[:500]}")
        found: dict[str, Any] = json.loads(out)
        self._next = max(self._next, found["next"])
        return found

    def _compile(self, name: str) -> Path:
        compiler = next((found for cc in ("cc", "gcc", "clang") if (found := shutil.which(cc))), None)
        if compiler is None:
            raise ConfigurationError(
                "bench router compiles its load generator: install a C compiler (cc, gcc or clang)"
            )
        target = self._folder / name
        command = [compiler, "-O2", "-o", str(target), str(_SOURCES / f"{name}.c"), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise ConfigurationError(f"{compiler} could not build {name}.c:\n{done.stderr[-2000:]}")
        return target

    def _bodies(self, messages: int) -> Path:
        return self._folder / f"bodies-{messages}"

    def _streams(self, messages: int) -> Path:
        return self._folder / f"streams-{messages}"

    def _direct(self, messages: int) -> Path:
        return self._folder / f"direct-{messages}"

    def _write_members(self) -> Path:
        path = self._folder / "members.json"
        replicas = [{"id": f"bench-{number}", "url": url, "state": "Ready"} for number, url in enumerate(self.workers)]
        path.write_text(json.dumps({"pool": POOL, "replicas": replicas}))
        return path

    def _launch_agents(self, directory: str, fifo: Path) -> None:
        config = {
            "directoryUrl": directory, "pool": POOL, "replicas": [f"bench-{n}" for n in range(REPLICAS)],
            "fifo": str(fifo), "modelFolder": FOLDER, "messages": self._messages, "seed": self._seed,
            "size": self._size, "salt": self._salt(),
        }  # fmt: skip
        path = self._folder / "agents.json"
        path.write_text(json.dumps(config))
        command = [sys.executable, "-m", "plumage_bench.benches.router.agents", path]
        self._agents = self._launch("agents", command, self._other_core)

    def _launch_collector(self) -> None:
        port = self._ports["collector"] = _free_ports(1)
        command = [sys.executable, "-m", "plumage_bench.benches.router.collector", port]
        self._launch("collector", command, self._other_core)

    def _tracing(self) -> dict[str, Any]:
        """Of our router, as with `spec.tracing` and its default rate."""
        spec = TracingSpec(endpoint=f"http://127.0.0.1:{self._ports['collector']}")
        settings = tracing_config(spec, "bench-router")
        assert settings is not None
        return settings.written()

    def spans(self) -> float:
        """Spans that our router has exported so far."""
        url = f"http://127.0.0.1:{self._ports[OURS_NAME]}/metrics"
        asked = urllib.request.Request(url, headers={"X-Plumage-Admin-Key": self._admin_key.read_text().strip()})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            found = samples(answer.read().decode(), "plumage_router_spans_total")
            return sum(one.value for one in found if one.labels == {"outcome": "exported"})

    def _salt(self) -> str:
        """Of the load generator's tenant, by the router's own code."""
        salts = Salts()
        salts.use(self._salt_key.read_bytes().strip())
        return salts.of(Tenant(TENANT))

    def _launch_router(
        self, name: str, members: Path, ours: Ours, directory: str | None, *, tracing: dict[str, Any] | None = None
    ) -> None:
        port = self._ports[name] = _free_ports(1)
        config = ours.router(
            FOLDER, directory, port, pool=POOL, model={"name": MODEL, "modelFolder": FOLDER},
            membershipFile=str(members), seed=self._seed, saltKeyFile=str(self._salt_key),
            auth={"adminKeyFile": str(self._admin_key), "apiKeysFile": str(self._api_keys)}, tracing=tracing,
            quotas=[QuotaConfig(**QUOTA.model_dump()).written()],
            **({"endpointPicker": {"port": self.picker_port}} if self.picker_port and name == OURS_NAME else {}),
        )  # fmt: skip
        path = self._folder / f"{name}.json"
        path.write_text(json.dumps(config))
        command = [sys.executable, "-m", "plumage_router", "--config", path, "--log-level", "WARNING"]
        self._routers[name] = self._popen(command, self._router_core, stdout=subprocess.DEVNULL)
        self._await(f"http://127.0.0.1:{port}/health", self._routers[name], name)

    def _launch(self, name: str, command: Sequence[Any], core: int) -> subprocess.Popen[bytes]:
        """Starts a process and waits for the line that reports that it is ready."""
        process = self._popen(command, core, stdout=subprocess.PIPE)
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise ConfigurationError(f"the benchmark's {name} did not start; its output is above")
        return process

    def _popen(self, command: Sequence[Any], core: int, **streams: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([*GUARDED, *map(str, command)], **streams)
        os.sched_setaffinity(process.pid, {core})
        self._stack.callback(_end, process)
        return process

    def _await(self, url: str, process: subprocess.Popen[bytes], name: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and process.poll() is None:
            try:
                with urllib.request.urlopen(url, timeout=1):
                    return
            except OSError:
                time.sleep(0.05)
        raise ConfigurationError(f"the benchmark's {name} did not start; its output is above")

    def cpu(self, target: str) -> float:
        """CPU seconds of a router so far; 0 for the mock, whose time is not measured."""
        process = self._routers.get(target)
        if process is None:
            return 0.0
        return _cpu_seconds(process)


@contextmanager
def _real_time(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[bool]:
    """Gives processes priority over all others of their core for this time. False if the system does not allow it."""
    try:
        for process in processes:
            os.sched_setscheduler(process.pid, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        for process in processes:
            os.sched_setscheduler(process.pid, os.SCHED_OTHER, os.sched_param(0))


def _cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _free_ports(count: int) -> int:
    """The first of `count` consecutive free ports."""
    for _ in range(100):
        with ExitStack() as held:
            sock = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            first: int = sock.getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise ConfigurationError(f"no {count} consecutive free ports on this machine")
