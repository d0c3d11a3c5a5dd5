"""Definitions of other projects' kinds, from the Go modules that publish them. Go's module proxy puts them into Go's
own cache, as it does the programs' sources. They are checked against the pin here, and the repository keeps no copy."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cluster.build import go
from cluster.errors import NotHereError

__all__ = [
    "FIRST_INFERENCE_POOLS",
    "HTTP_ROUTES",
    "INFERENCE_POOLS",
    "KEDA_METRICS_API",
    "POD_MONITORS",
    "SCALED_OBJECTS",
    "Definition",
    "definition",
]

_LIMIT_S = 120.0
_TRIES = 3


@dataclass(frozen=True)
class Definition:
    """A file of a module. sum: of the module, as Go's checksum database has it."""

    module: str
    sum: str
    file: str


HTTP_ROUTES: Final = Definition(
    "sigs.k8s.io/gateway-api@v1.6.1",
    "h1:mock6phZbI6rvZerwrVNk7hVNymQgHo+6sJ81Ia7ftY=",
    "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
)
INFERENCE_POOLS: Final = Definition(
    "sigs.k8s.io/gateway-api-inference-extension@v1.6.0",
    "h1:cjtwMJYcTnLXBYE5ffR1/hHhn7U1aIFfe2RITYmOXVA=",
    "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
)
# The first release with version v1 of the kind. It has no appProtocol, and one port at most.
FIRST_INFERENCE_POOLS: Final = replace(
    INFERENCE_POOLS,
    module="sigs.k8s.io/gateway-api-inference-extension@v1.0.0",
    sum="h1:GsHvlu1Cn1t6+vrHoPdNNlpwKxf/y1HuQSlUjd58Ds8=",
)
POD_MONITORS: Final = Definition(
    "github.com/prometheus-operator/prometheus-operator@v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
)
SCALED_OBJECTS: Final = Definition(
    "github.com/kedacore/keda/v2@v2.21.0",
    "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
    "config/crd/bases/keda.sh_scaledobjects.yaml",
)
# The definition allows any strings in a trigger's metadata. KEDA's code has the valid ones.
KEDA_METRICS_API: Final = replace(SCALED_OBJECTS, file="pkg/scalers/metrics_api_scaler.go")


def definition(wanted: Definition) -> Path:
    """The path of the file, which is downloaded if necessary. Raises NotHereError if it is not available or not the
    pinned one."""
    command = [go(), "mod", "download", "-json", wanted.module]
    for _ in range(_TRIES):  # a proxy may drop a connection, so ask again
        ran = _run(command)
        if ran.returncode == 0:
            break
    downloaded = json.loads(ran.stdout) if ran.stdout.strip() else {}
    if ran.returncode or downloaded.get("Sum") != wanted.sum:
        why = (
            downloaded.get("Error")
            or ran.stderr.strip()
            or f"its sum is {downloaded.get('Sum')}, and {wanted.sum} is pinned"
        )
        raise NotHereError(f"`{' '.join(command)}` failed; is Go's module proxy reachable? {why}")
    return Path(downloaded["Dir"]) / wanted.file


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GOFLAGS": "", "GOWORK": "off"}
    with tempfile.TemporaryDirectory() as nowhere:  # a folder without a module
        try:
            return subprocess.run(
                command, cwd=nowhere, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotHereError(f"{' '.join(command)} took longer than {_LIMIT_S:.0f} s") from None
