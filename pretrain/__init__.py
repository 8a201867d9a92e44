"""Token shards to checkpoints to a Hugging Face model."""

import os

import runtime.ancestors  # noqa: F401 - looks at once who started this process

# On a CPU a step takes hundreds of megabytes and gives them back. torch then asks for huge pages, which spares most of
# the page faults and of the walks through page tables. Read by torch at its first allocation; Linux alone.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
