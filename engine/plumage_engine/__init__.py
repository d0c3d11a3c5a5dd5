"""What runs beside or inside an engine: the simulator, the agent, the vLLM plugin."""
