"""What nearly every stage imports: loaded once, in the server that their processes are forked from.

Nothing here may touch CUDA, which cannot be used in a process forked after that.
"""

import transformers.models.bert.modeling_bert

import benchmarks.gpu_check.training

__all__ = ["benchmarks", "transformers"]
