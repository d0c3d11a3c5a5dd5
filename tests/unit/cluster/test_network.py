"""A pod's network where `ip` hangs: nothing of it is left, and its address is free again."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster.cri import network
from cluster.cri.network import NetworkError, PodNetworks

HANGS = """#!/bin/sh
echo "$*" >> {called}
case "$*" in *"-b -"*) [ -e {stuck} ] && exec sleep 60 ;; esac
cat > /dev/null
"""


def test_timed_out_command_leaks_neither_address_nor_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called, stuck = tmp_path / "called", tmp_path / "stuck"
    program = tmp_path / "ip"
    program.write_text(HANGS.format(called=called, stuck=stuck))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    networks = PodNetworks("10.0.0.1", "10.1.0.0/30")  # room for one pod
    stuck.touch()
    with monkeypatch.context() as impatient:
        impatient.setattr(network, "_LIMIT_S", 1.0)
        with pytest.raises(NetworkError, match="no answer within"):
            networks.create("first")
    assert called.read_text().splitlines()[-2:] == ["link del vfirst", "netns del first"]
    stuck.unlink()
    assert networks.create("second").address == "10.1.0.2"
