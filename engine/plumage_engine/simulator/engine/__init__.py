"""The simulated engine: scheduler, block pool, host tier and the time of a step. No clock, network or model."""
