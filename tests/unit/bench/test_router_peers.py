"""The router benchmark compares ours with the best other router, round by round, and names those that are missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plumage_bench.benches.router.peers import ENVOY, PEERS, SIZES, Comparison, Peer, Place, installed
from plumage_bench.benches.router.rig import OURS_NAME, Drive

PINS = Path(__file__).parents[3] / "constraints-peers.txt"


def drives(*rates: float) -> list[Drive]:
    return [Drive(int(rate), 1.0, 1.0, 2.0, 3.0, 4.0, 5.0) for rate in rates]


def compared(**peers: list[float]) -> Comparison:
    found = {(size, OURS_NAME): drives(100, 200, 300) for size in SIZES}
    found |= {(size, name): drives(*rates) for size in SIZES for name, rates in peers.items()}
    found[8192, ENVOY] = drives(1000, 1000, 1000)
    return Comparison(found, {"absent": "pip install absent"})


def test_each_round_is_compared_with_its_best_peer() -> None:
    keys = compared(one=[50, 400, 100], other=[200, 100, 150]).keys()
    assert keys["over_best_peer"] == keys["over_best_peer_8k"] == 0.5  # of 0.5, 0.5 and 2
    assert keys["over_envoy"] == 0.2


def test_least_of_the_sizes_counts() -> None:
    found = dict(compared(one=[100, 200, 300]).drives)
    found[450_000, "one"] = drives(400, 800, 1200)
    keys = Comparison(found, {}).keys()
    assert (keys["over_best_peer"], keys["over_best_peer_8k"], keys["over_best_peer_450k"]) == (0.25, 1.0, 0.25)


def test_envoy_is_no_peer_that_knows_caches() -> None:
    assert compared().keys() == {"over_envoy": 0.2}


def test_table_names_what_was_not_measured() -> None:
    table = compared(one=[1, 2, 3]).table()
    assert "absent (pip install absent)" in table.notes
    assert len(table.rows) == 2 * len(SIZES) + 1


def test_names_have_the_versions_that_are_installed() -> None:
    pins = dict(line.split("==") for line in PINS.read_text().splitlines() if "==" in line)
    assert pins.keys() == {peer.package for peer in PEERS}
    assert [peer.name for peer in PEERS if peer.name != ENVOY] == [
        f"{peer.package} {pins[peer.package]}, cache_aware" for peer in PEERS if peer.name != ENVOY
    ]


def test_only_installed_programs_are_peers(tmp_path: Path) -> None:
    assert installed(tmp_path) == []
    (tmp_path / "smg").touch()
    assert [peer.package for peer in installed(tmp_path)] == ["smg"]


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.program)
def test_each_peer_gets_its_port_and_all_engines(peer: Peer, tmp_path: Path) -> None:
    place = Place(tmp_path / "program", 4000, 4001, ("http://127.0.0.1:5000", "http://127.0.0.1:5001"), tmp_path)
    command = [str(part) for part in peer.command(place)]
    config = tmp_path / "envoy.yaml"
    said = config.read_text() if config.exists() else json.dumps(command)
    assert all(port in said for port in ("4000", "5000", "5001"))
    assert command[0] == str(place.program)
