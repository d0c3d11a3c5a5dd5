"""Local mode: an InferencePool as processes of this machine. Needs the extra `local`.

`plan` computes the processes and their settings, without I/O. `folder` holds the files of a running pool. `processes`
starts and restarts one process. `pool` runs all of them together. `control` is how other commands reach a running pool.
"""
