"""The replica's life beside its engine: state, warm-up, checkpoints and drain."""
