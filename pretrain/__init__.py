"""Token shards to checkpoints to a Hugging Face model."""
