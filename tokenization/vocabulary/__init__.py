"""Text to a vocabulary: a sample, counted words, WordPiece, BPE or Unigram, and a report on it."""
