"""What a step sees: shards to epoch plans, global batches, masks and token streams."""
