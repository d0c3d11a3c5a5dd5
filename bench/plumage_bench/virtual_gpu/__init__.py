"""A device that only takes time, under the other parts of a real vLLM: scheduler, block pool, offloading, API server.

    vllm serve MODEL --distributed-executor-backend plumage_bench.virtual_gpu.executor.VirtualGpuExecutor \\
        --additional-config '{"virtualGpu": {"preset": "gpu", "kvGib": 24}}'

`plumage_engine.simulator.engine.device` computes the time of a step, with the same code as in the simulator. No weights
are read, and answers are random words by seed. Only `executor` and `transfers` import vLLM.
"""
