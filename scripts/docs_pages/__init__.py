"""The generated pages of docs/: one module a page, each with `page() -> str`. scripts/make_docs.py writes them."""
