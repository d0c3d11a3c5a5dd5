"""A device that only costs time, under everything else of a real vLLM: scheduler, block pool, offloading, API server.

    vllm serve MODEL --distributed-executor-backend plumage_bench.virtual_gpu.executor.VirtualGpuExecutor \\
        --additional-config '{"virtualGpu": {"preset": "gpu", "kvGib": 24}}'

A step takes what `plumage_engine.simulator.engine.device` says, by the same code as in the simulator. No weights are
read, and answers are words drawn by seed. Only `executor` and `transfers` import vLLM; the rest is plain Python.
"""
