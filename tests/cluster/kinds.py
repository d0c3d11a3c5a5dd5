"""Definitions of other projects' kinds, from the Go modules that publish them. They come by Go's module proxy into Go's
own cache, as the programs' sources do, and are held to the pin here: no copy of them is kept in the tree."""

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

__all__ = ["HTTP_ROUTES", "KEDA_METRICS_API", "POD_MONITORS", "SCALED_OBJECTS", "Definition", "definition"]

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
# To the definition a trigger's metadata is any strings. What they may be is said where KEDA reads them.
KEDA_METRICS_API: Final = replace(SCALED_OBJECTS, file="pkg/scalers/metrics_api_scaler.go")


def definition(wanted: Definition) -> Path:
    """Where it is now, downloaded if need be. NotHereError where it can't be had, or is not what was pinned."""
    command = [go(), "mod", "download", "-json", wanted.module]
    for _ in range(_TRIES):  # a proxy that drops a connection is asked again
        ran = _run(command)
        if ran.returncode == 0:
            break
    told = json.loads(ran.stdout) if ran.stdout.strip() else {}
    if ran.returncode or told.get("Sum") != wanted.sum:
        why = told.get("Error") or ran.stderr.strip() or f"its sum is {told.get('Sum')}, and {wanted.sum} is pinned"
        raise NotHereError(f"`{' '.join(command)}` failed; is Go's module proxy reachable? {why}")
    return Path(told["Dir"]) / wanted.file


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GOFLAGS": "", "GOWORK": "off"}
    with tempfile.TemporaryDirectory() as nowhere:  # in no module's folder
        try:
            return subprocess.run(
                command, cwd=nowhere, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotHereError(f"{' '.join(command)} took longer than {_LIMIT_S:.0f} s") from None
