"""Prometheus' text form: `exposition` writes a page, `parser` reads one, `histogram` counts values in buckets."""
