"""How a step runs: all that knows DeepSpeed."""
