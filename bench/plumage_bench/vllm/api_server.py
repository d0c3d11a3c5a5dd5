"""`python -m plumage_bench.vllm.api_server ARGUMENTS`: vLLM's API server, whose engine core is forked from it.

vLLM can fork its engine core, but on a CPU it always starts a new interpreter, since threads of OpenMP do not survive a
fork. With OMP_NUM_THREADS=1 there are none. A fork saves the second import of vLLM, about half of the CPU that a server
needs until it is ready. Plugins are not loaded again in a fork: a server that runs ours must not start this way.
"""

from __future__ import annotations

import os
import runpy

__all__ = ["main"]


def main() -> None:
    import vllm.envs

    if os.environ.get("OMP_NUM_THREADS") != "1":
        raise SystemExit("api_server: OMP_NUM_THREADS must be 1")
    vllm.envs.environment_variables["VLLM_WORKER_MULTIPROC_METHOD"] = lambda: "fork"
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")


if __name__ == "__main__":
    main()
