"""Local mode: an InferencePool as processes of this machine.

`plan` says which processes with which settings, and does no I/O; `supervisor` makes it so and keeps it so; `folder` is
where their files lie; `control` is how other commands reach a pool that is up.
"""
