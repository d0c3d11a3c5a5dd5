"""`make check-vllm`: does another version of vLLM have what the plugin and the virtual GPU rely on?"""
