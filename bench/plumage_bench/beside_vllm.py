"""Benchmarks of real vLLM run where vLLM is: in `.venv-vllm`, which is another Python than the developer's.

So the command hands itself over: the process becomes the same command, run by that Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from plumage.errors import ConfigurationError

__all__ = ["hand_over"]

_CHECKOUT = Path(__file__).parents[2]


def hand_over(name: str, module: str, arguments: Sequence[str]) -> None:
    """Return where vLLM can be imported; else become `python -m module arguments` of `.venv-vllm`, or of the folder
    that VLLM_VENV names. ConfigurationError when that was not set up."""
    if find_spec("torch") is not None and find_spec("vllm") is not None:
        return
    venv = Path(os.environ.get("VLLM_VENV") or _CHECKOUT / ".venv-vllm").absolute()
    if not (venv / ".ready").exists() or venv == Path(sys.prefix):
        raise ConfigurationError(
            f"bench {name} runs real vLLM, which is not set up here: `make setup-vllm` installs its CPU build into "
            ".venv-vllm (Linux on x86-64, 3.5 GB)"
        )
    python = str(venv / "bin" / "python")
    sys.stdout.flush()
    os.execv(python, [python, "-m", module, *arguments])
