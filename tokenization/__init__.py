"""Raw text to a WordPiece tokenizer and to token shards."""
