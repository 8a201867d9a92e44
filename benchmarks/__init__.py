"""Benchmarks: each is `python -m benchmarks.NAME` and prints ratios against a peer measured in the same run."""
