"""Keys that DeepSpeed knows, or once knew, and this project does not take: each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

_DATA_PARALLEL = "all ranks are data-parallel here"
_GONE = "DeepSpeed has removed it"
_ORDER = "the order and the lengths of the pairs come from the recipe and its epoch plan"
_COMPILE = "model.compile of the recipe says what is compiled"

REFUSED: Mapping[str, str] = {
    "amp": f"{_GONE}; write bf16, fp16 or torch_autocast",
    "autotuning": "it starts runs of its own; zerobert bench measures a setting",
    "bfloat16": "write bf16, DeepSpeed's present name",
    "check_overflow": "its place is bf16.check_grad_overflow",
    "compression_training": f"{_GONE}; the model would train whole",
    "curriculum_learning": f"{_GONE}, and {_ORDER}",
    "data_efficiency": _ORDER,
    "data_parallel_size": f"{_DATA_PARALLEL}; the launcher says how many",
    "dataloader_drop_last": f"DeepSpeed's data loader is not used: {_ORDER}",
    "datastates_ckpt": "checkpoints are written by torch, and checked by size and sha256",
    "disable_allgather": "DeepSpeed reads it and does nothing with it",
    "eigenvalue": f"{_GONE}, with mixture of quantization",
    "elasticity": f"{_GONE}; a run goes on with another number of processes when it is started again",
    "expert_parallel": f"BERT has no experts, and {_DATA_PARALLEL}",
    "graph_harvesting": f"{_GONE}; {_COMPILE}",
    "hybrid_engine": "it is for generating text between steps, which BERT does not do",
    "managed_gradient_accumulation": "gradient_accumulation_steps says how many micro-steps a step has",
    "nebula": f"{_GONE}; checkpoints are written by torch",
    "pipeline": f"{_DATA_PARALLEL}; ZeRO 3 is for models that one GPU cannot hold",
    "progressive_layer_drop": f"{_GONE}",
    "quantize_training": f"{_GONE}",
    "seq_parallel_communication_data_type": f"{_DATA_PARALLEL}",
    "sequence_parallel_size": f"{_DATA_PARALLEL}",
    "sparse_attention": f"{_GONE}; attention runs pair by pair over the token stream, without padding",
    "sparse_gradients": f"{_GONE}; the decoder is tied to the embedding, whose gradient is dense",
    "tensor_parallel": f"{_DATA_PARALLEL}; ZeRO 3 is for models that one GPU cannot hold",
    "use_data_before_expert_parallelism": f"BERT has no experts, and {_DATA_PARALLEL}",
    "vocabulary_size": "the tokenizer says it, and model.vocab_size of the recipe",
    "weight_quantization": "it is for inference; training keeps its weights whole",
    "zero_optimization.cpu_offload": 'write offload_optimizer: {"device": "cpu"}',
    "zero_optimization.cpu_offload_param": 'write offload_param: {"device": "cpu"}',
    "zero_optimization.cpu_offload_use_pin_memory": "write pin_memory in offload_optimizer or offload_param",
    "zero_optimization.legacy_stage1": f"{_GONE}; write stage: 1",
    "zero_optimization.mics_hierarchical_params_gather": f"{_GONE}, with MiCS",
    "zero_optimization.mics_shard_size": f"{_GONE}, with MiCS; zero_hpz_partition_size keeps a copy of the parameters "
    "within a host",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "write stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.zenflow": "its updates come late, and so no run would equal another",
    "zero_optimization.zeropp_loco_param": f"{_GONE}; zero_quantized_gradients works without it",
}
"""Path in the JSON -> why it is refused and, where there is such a thing, what to write."""
