"""The suite for pickers of any make passes with a right one, and finds faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faulty_picker import ENDPOINTS, FAULTS, MODEL, NONE

TESTS = Path(__file__).parents[3]
SUITE = TESTS / "integration/endpoint_pickers"


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """Of the pickers, by their faults."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(TESTS / "support/faulty_picker.py")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    assert process.stdout is not None
    try:
        ports = map(int, process.stdout.readline().split())
        yield {fault: f"127.0.0.1:{port}" for fault, port in zip((NONE, *FAULTS), ports, strict=True)}
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def suite(address: str, *which: str) -> subprocess.CompletedProcess[str]:
    """One run against the picker at the address."""
    environment = {
        **os.environ, "PICKER": address, "PICKER_MODEL": MODEL, "PICKER_ENDPOINTS": ",".join(ENDPOINTS),
        "PICKER_LARGE_BYTES": "1000000", "PICKER_SECONDS": "3",
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-q", "-x", *(which or (str(SUITE),)), "-p", "no:cacheprovider"]
    return subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


def test_right_picker_passes(addresses: dict[str, str]) -> None:
    done = suite(addresses[NONE])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(addresses: dict[str, str], fault: str) -> None:
    done = suite(addresses[fault], f"{SUITE}/{FAULTS[fault]}")
    assert done.returncode == 1, done.stdout
    assert "FAILED" in done.stdout
