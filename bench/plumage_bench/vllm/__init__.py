"""Real vLLM under the benchmarks: in this process, in virtual time, on a pretended device, and as a server."""
