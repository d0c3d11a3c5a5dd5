"""The Python packages that each part of the CLI needs."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["BENCHMARKS", "MODULES", "require"]

BENCHMARKS = "benchmarks"
MODULES = {
    "the router": ("fastapi", "uvloop", "httptools", "orjson"),
    "engines and agents": ("zmq", "starlette", "uvicorn", "httpx", "tokenizers"),
    "the demo": ("openai",),
    BENCHMARKS: ("numpy", "matplotlib"),
}
"""Importable names by the part that needs them."""


def require(*parts: str) -> None:
    """ModuleNotFoundError when a package of these parts is missing, before a process of the pool fails for it."""
    for name in (name for part in parts for name in MODULES[part]):
        if find_spec(name) is None:
            raise ModuleNotFoundError(name=name)
