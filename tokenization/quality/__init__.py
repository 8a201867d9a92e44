"""What is left out of the shards on request: duplicates, short documents, what filters refuse."""
