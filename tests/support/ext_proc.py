"""The classes of Envoy's external processing, generated from `ext_proc.proto` beside this file."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

__all__ = ["METHOD", "ext_proc"]

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_HERE = Path(__file__).parent


@cache
def ext_proc() -> ModuleType:
    """A module with ProcessingRequest, ProcessingResponse and their parts."""
    import grpc_tools
    from grpc_tools import protoc

    includes = [f"-I{_HERE}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
    with TemporaryDirectory() as folder:
        code = protoc.main(["protoc", *includes, f"--python_out={folder}", str(_HERE / "ext_proc.proto")])
        assert code == 0, "protoc failed"
        spec = importlib.util.spec_from_file_location("ext_proc_pb2", Path(folder) / "ext_proc_pb2.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["ext_proc_pb2"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
