"""The interface's messages: Python made from the pinned `api.proto`, kept in the cache."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from cluster import build
from cluster.cache import bin_folder, locked
from cluster.errors import NotHereError

__all__ = ["ensure", "load"]

_MODULE, _PROTO = "k8s.io/cri-api", "pkg/apis/runtime/v1"


def ensure() -> Path:
    """The folder with `api_pb2.py` and `api_pb2_grpc.py`. Makes it if it is missing."""
    folder = _folder()
    with locked("stubs"):
        if not (folder / "api_pb2_grpc.py").exists():
            _make(folder)
    return folder


def load() -> tuple[ModuleType, ModuleType]:
    """The modules of messages and service. Call `ensure` first."""
    sys.path.insert(0, str(_folder()))
    return importlib.import_module("api_pb2"), importlib.import_module("api_pb2_grpc")


def _folder() -> Path:
    return bin_folder().parent / "cri"


def _make(folder: Path) -> None:
    proto = build.module_folder("kubernetes", _MODULE) / _PROTO
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".cri-", dir=folder.parent) as scratch:
        command = [sys.executable, "-W", "ignore", "-m", "grpc_tools.protoc", "-I", str(proto)]
        outputs = [f"--python_out={scratch}", f"--grpc_python_out={scratch}", str(proto / "api.proto")]
        ran = subprocess.run([*command, *outputs], capture_output=True, text=True, timeout=120, check=False)
        if ran.returncode:
            raise NotHereError(f"api.proto could not be compiled; pip install 'plumage-llm[dev]'?\n{ran.stderr}")
        folder.mkdir(exist_ok=True)
        for name in ("api_pb2.py", "api_pb2_grpc.py"):  # written last: its presence means that both files are complete
            Path(scratch, name).replace(folder / name)
