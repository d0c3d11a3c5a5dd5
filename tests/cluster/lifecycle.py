"""Starting, entering and ending a cluster with nodes."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster import certificates, coredns, memory_groups, programs, relay, requirements
from cluster.addresses import MOST_NODES, node_ip
from cluster.cache import bin_folder, folder, say
from cluster.control_plane import kubeconfig
from cluster.cri import stubs
from cluster.errors import ClusterError
from cluster.keeper import INSIDE, LOCK, PLAN, READY, Plan
from cluster.processes import tail, tethered

__all__ = ["Cluster", "default_run", "images_folder", "of_kubeconfig", "running", "start", "stop"]

_START_S, _END_S, _POLL_S = 180.0, 20.0, 0.05
_STARTER = "starter.pid"  # in a run folder: the process whose end ends the cluster
_TESTS = Path(__file__).parent.parent
_attached: dict[Path, subprocess.Popen[bytes]] = {}  # this process's own, by run folder


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `first` is the pid, as this machine sees it, of the first process in its namespaces."""

    run: Path
    starter: int
    first: int

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig that works anywhere on this machine."""
        return self.run / "kubeconfig"

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command prefix that runs a command in its namespaces, where Services and pods are reached."""
        spaces = ["nsenter", f"--target={self.first}", "--net", "--mount", "--pid", f"--wd={Path.cwd()}"]
        path = os.pathsep.join((str(bin_folder()), os.environ["PATH"]))
        return [*spaces, "env", f"KUBECONFIG={self.run / INSIDE}", f"PATH={path}", *command]

    def process(self, name: str) -> int:
        """The pid, in its namespaces, of `etcd`, `apiserver`, `kubelet-2`, …"""
        pids: dict[str, int] = json.loads((self.run / READY).read_text())
        return pids[name]

    def send(self, name: str, number: signal.Signals) -> None:
        """Sends one of its programs a signal: SIGSTOP freezes a kubelet or the API server, SIGCONT continues it."""
        subprocess.run(self.enter(["kill", f"-{int(number)}", str(self.process(name))]), check=True, timeout=30)

    def kill_container(self, pod: str, container: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a container's first process a signal; `pod` is NAMESPACE/NAME. Raises ClusterError if there is none."""
        self._find(pod, container, number=number)

    def freeze(self, node: int) -> None:
        """Stops kubelet, runtime and containers of a node, as if the machine stood still. It answers nobody, but the
        kernel still accepts connections."""
        for program in (f"kubelet-{node}", f"cri-{node}"):
            self.send(program, signal.SIGSTOP)
        self._find(str(node), number=signal.SIGSTOP)

    def thaw(self, node: int) -> None:
        """Continues a frozen node."""
        self._find(str(node), number=signal.SIGCONT)
        for program in (f"cri-{node}", f"kubelet-{node}"):
            self.send(program, signal.SIGCONT)

    def _find(self, *who: str, number: signal.Signals) -> None:
        command = [sys.executable, "-m", "cluster.cri.find", *who, str(int(number))]
        ran = subprocess.run(
            self.enter(command), env=_environment(), capture_output=True, text=True, timeout=30, check=False
        )
        if ran.returncode:
            raise ClusterError(ran.stderr.strip())


def default_run() -> Path:
    """The folder of `make cluster`'s state. RUN names another one, so that several clusters can run side by side."""
    return Path(os.environ.get("RUN") or Path(tempfile.gettempdir()) / f"plumage-cluster-{os.geteuid()}")


def images_folder() -> Path:
    """The images that nodes can run, in the cache (images.py)."""
    return folder() / "images"


def start(run: Path, nodes: int = 2, *, proxy: str = "nftables", attached: bool = False) -> Cluster:
    """Starts a cluster in `run`, which is emptied first, and waits until its nodes are Ready.

    An `attached` cluster ends with the calling thread of this process, also if that is killed. Another one stays until
    `stop`. Raises NotHereError where this machine can not run one, and ClusterError with the ends of the logs where the
    start failed.
    """
    if not 1 <= nodes <= MOST_NODES:
        raise ClusterError(f"nodes must be 1 to {MOST_NODES}, and are {nodes}")
    requirements.check(requirements.NODES.items())
    found = programs.ensure(programs.SETS["nodes"])
    stubs.ensure()
    images_folder().mkdir(parents=True, exist_ok=True)
    coredns.make_image(found["coredns"], images_folder())
    memory_groups.sweep(_lives)
    _clear(run)
    with relay.listen() as listening:
        plan = Plan(
            run=str(run),
            nodes=nodes,
            images=str(images_folder()),
            proxy=proxy,
            memory_group=memory_groups.name_of(run),
            token=secrets.token_urlsafe(24),
            relay_fd=listening.fileno(),
            programs={name: str(path) for name, path in found.items()},
        )
        _write(plan, listening.getsockname()[1])
        return _launch(run, listening.fileno(), attached=attached)


def running(run: Path) -> Cluster | None:
    """The cluster in `run`, or None if none runs there."""
    try:
        starter = int((run / _STARTER).read_text())
        first = psutil.Process(starter).children()[0].pid
        with (run / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # the keeper holds the lock, so it runs
        return Cluster(run, starter, first)
    except (OSError, ValueError, IndexError, psutil.Error):
        return None
    return None


def of_kubeconfig(named: str | None) -> Cluster | None:
    """The running cluster to which KUBECONFIG's file belongs, as `up` prints it. None for any other cluster, and for a
    list of files, since it may name several."""
    if not named:
        return None
    cluster = running(Path(named).resolve().parent)
    return cluster if cluster is not None and cluster.kubeconfig.resolve() == Path(named).resolve() else None


def stop(run: Path) -> bool:
    """Ends the cluster and removes `run`. False if it did not run."""
    cluster = running(run)
    if cluster is not None:
        with suppress(ProcessLookupError):
            os.kill(cluster.starter, signal.SIGKILL)  # the kernel ends the other processes
        _until_ended(cluster)
    if (process := _attached.pop(run, None)) is not None:
        process.wait(_END_S)
    _clear(run)
    memory_groups.sweep(_lives)
    return cluster is not None


def _lives(run: Path) -> bool:
    return running(run) is not None


def _clear(run: Path) -> None:
    if running(run) is not None:
        raise ClusterError(f"one runs in {run}: make cluster-down, or name another folder by RUN")
    if run.exists() and any(run.iterdir()) and not (run / PLAN).exists():
        raise ClusterError(f"{run} has something else in it: name another folder by RUN")
    shutil.rmtree(run, ignore_errors=True)


def _write(plan: Plan, port: int) -> None:
    run = Path(plan.run)
    run.mkdir(parents=True, mode=0o700)
    plan.write()
    certificates.write_all(run / "certs", [node_ip(1), "127.0.0.1", "198.19.0.1"])
    outside = run / "kubeconfig"
    outside.touch(mode=0o600)
    outside.write_text(kubeconfig(f"https://127.0.0.1:{port}", run / "certs" / "ca.crt", plan.token))


def _launch(run: Path, relay_fd: int, *, attached: bool) -> Cluster:
    spaces = ["unshare", "--net", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*spaces, sys.executable, "-m", "cluster.keeper", str(run)]
    with (run / "keeper.log").open("ab") as log:
        process = subprocess.Popen(
            tethered(command) if attached else command,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(relay_fd,),
            start_new_session=not attached,
        )
    (run / _STARTER).write_text(str(process.pid))
    end = time.monotonic() + _START_S
    while not (run / READY).exists():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            process.wait()
            raise ClusterError(f"the cluster did not start; logs are in {run}\n{tail(run / 'keeper.log', 40)}")
        time.sleep(_POLL_S)
    cluster = running(run)
    if cluster is None:
        raise ClusterError(f"the cluster ended at once; logs are in {run}")
    if attached:
        _attached[run] = process
    else:
        process.returncode = 0  # it is not a child of this process
    say(f"its log files are in {run}")
    return cluster


def _until_ended(cluster: Cluster) -> None:
    end = time.monotonic() + _END_S
    while psutil.pid_exists(cluster.first) and time.monotonic() < end:
        time.sleep(_POLL_S)


def _environment() -> dict[str, str]:
    paths = [str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
