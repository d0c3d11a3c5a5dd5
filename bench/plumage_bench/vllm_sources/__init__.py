"""`make check-vllm`: checks whether another version of vLLM has what the plugin and the virtual GPU need."""
