"""What the virtual GPU has of vLLM. Other modules of the package import it from here."""
