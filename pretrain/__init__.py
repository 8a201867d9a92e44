"""Token shards to checkpoints to a Hugging Face model."""

import os

# On a CPU a step takes hundreds of megabytes and gives them back. torch then asks for huge pages, which spares most of
# the page faults and of the walks through page tables. Read by torch at its first allocation; Linux alone.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
