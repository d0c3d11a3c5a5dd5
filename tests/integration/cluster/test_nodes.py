"""Clusters with nodes: several at the same time, and their complete removal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from cluster import lifecycle, programs, requirements
from cluster.cri import memory
from cluster.errors import ClusterError, NotHereError
from cluster.keeper import Plan
from cluster.memory_groups import name_of
from support.needs import missing

pytestmark = pytest.mark.timeout(600)

CRASH = """
import os, signal, sys
from pathlib import Path
from cluster import lifecycle
cluster = lifecycle.start(Path(sys.argv[1]), 1, attached=True)
print(cluster.starter, cluster.first, flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, condition
        time.sleep(0.1)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    try:
        requirements.check(requirements.NODES.items())
        programs.required(programs.SETS["nodes"])
    except NotHereError as error:
        missing("a cluster with nodes", str(error))
    yield tmp_path / "own"
    lifecycle.stop(tmp_path / "own")


def nodes_of(run: Path, cluster: lifecycle.Cluster) -> str:
    kubectl = Plan.read(run).programs["kubectl"]
    command = [kubectl, f"--kubeconfig={cluster.kubeconfig}", "get", "nodes", "-o", "name"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_two_clusters_run_and_killed_one_leaves_nothing(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", CRASH, other], env=environment, stdin=pipe, stdout=pipe) as crashing:
        assert crashing.stdout is not None
        starter, first = (int(word) for word in crashing.stdout.readline().split())
        inside = psutil.Process(first).children(recursive=True)
        assert len(inside) > 5
        own = lifecycle.start(run, 1, attached=True)
        assert nodes_of(run, own) == nodes_of(other, lifecycle.Cluster(other, starter, first)) == "node/node-1\n"
        with pytest.raises(ClusterError, match="one runs in"):
            lifecycle.start(run, 1)
        assert lifecycle.of_kubeconfig(str(own.kubeconfig)) == own
        assert lifecycle.of_kubeconfig(str(run / "other-file")) is None
        crashing.communicate()
    assert crashing.returncode == -signal.SIGKILL
    until(lambda: not any(process.is_running() for process in inside))
    assert lifecycle.running(other) is None
    assert lifecycle.of_kubeconfig(str(other / "kubeconfig")) is None
    assert nodes_of(run, own) == "node/node-1\n"
    assert lifecycle.stop(other) is False
    assert not other.exists()
    assert lifecycle.stop(run) is True
    assert not run.exists()
    group = memory.own_group()
    assert group is None or not any((group / name_of(each)).exists() for each in (run, other))


def test_folder_with_other_files_is_kept(run: Path) -> None:
    run.mkdir()
    (run / "thesis.txt").write_text("unsaved")
    with pytest.raises(ClusterError, match="something else in it"):
        lifecycle.start(run, 1)
    assert (run / "thesis.txt").read_text() == "unsaved"
    (run / "thesis.txt").unlink()
