"""All names that the virtual GPU uses from vLLM. Other modules of the package import them from here."""
