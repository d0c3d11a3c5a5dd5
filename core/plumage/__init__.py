"""Plumage's pure ring: the decisions that engines, routers and the operator share.

Nothing here reads a clock, draws a random number of its own or does I/O. All three are arguments. So the same code runs
in a router, in an engine and in virtual time. The exceptions: `plumage.directory` talks to Redis, and `plumage.models`
and `plumage.rendering.folder` read a model's folder at start.
"""

__version__ = "0.1.0"
