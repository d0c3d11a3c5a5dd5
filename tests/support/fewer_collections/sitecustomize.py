"""Python runs this at the start of each process that has this folder in PYTHONPATH.

With Python's own limits the import of vLLM takes 15 s of CPU time, 2.5 s of them for 1,700 garbage collections, which
find almost nothing. With FORKED_CORE set, a vLLM API server forks its engine core, which then imports nothing: see
`support.vllm_forking`.
"""

from __future__ import annotations

import gc
import os
import sys

gc.set_threshold(100_000, 50, 1000)

if "FORKED_CORE" in os.environ and "vllm.entrypoints.openai.api_server" in sys.orig_argv:
    os.environ["OMP_NUM_THREADS"] = "1"  # threads of OpenMP do not survive a fork
    import vllm.envs

    vllm.envs.environment_variables["VLLM_WORKER_MULTIPROC_METHOD"] = lambda: "fork"
