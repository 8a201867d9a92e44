"""The whole pipeline on an embedded corpus: `make demo`."""
