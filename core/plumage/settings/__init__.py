"""A pool's manifest → the configuration of its processes: the files of engine, agent and router, and vLLM's flags.

Local mode writes them into the pool's folder, the operator into ConfigMaps. Both use this package, so that a pool is
the same on one machine and in a cluster. Paths, ports and addresses differ, so they are arguments.

    router_config   agent_config   simulator_config   plugin_config     models, which the processes read too
    router          agent          simulator          vllm              manifest → model

`engine_policies` has the models that simulator and plugin share. A model does not import the writers, so that a process
does not load the manifest's models to read its file. `Settings.written` is the file's content.
"""
