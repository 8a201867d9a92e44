"""What a step computes: BERT on a token stream, its attention and its loss."""
