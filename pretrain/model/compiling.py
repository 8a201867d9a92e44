"""torch.compile of the encoder's layers: one graph for all of them, names and weights untouched.

Each `BertLayer` is compiled in place (`nn.Module.compile`), so the state dict, the parameters' order and what an engine
sees stay stock. The layers share their code, and with it the compiled graph: the time to compile does not grow with the
depth. Embeddings, the head and the loss stay as they are; they are few kernels a step.

Shapes: the number of tokens T may vary. The first T gives a graph for that T, the second one a graph for any T.

ZeRO stage 3 takes each layer's parameters away between calls and brings them back in hooks, in the midst of what would
be compiled: there nothing is compiled. Nor is it on a CPU, where nothing is gained.

Hidden dropout draws other numbers compiled than not (same seed, same chance), so a run that must repeat bit for bit
keeps its mode.

Evaluation runs the layers as they are (`as_they_are`): few steps, of other shapes, without gradients.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers.models.bert.modeling_bert import BertLayer

from runtime.command import ConfigError

OFF = "off"
LAYERS = "layers"
LAYERS_CUDA_GRAPHS = "layers-cudagraphs"
AUTO = "auto"
SETTINGS = (AUTO, OFF, LAYERS, LAYERS_CUDA_GRAPHS)
"""Values of model.compile."""

_INDUCTOR_MODE = {LAYERS: "default", LAYERS_CUDA_GRAPHS: "reduce-overhead"}


def resolve_compile(setting: str, *, on_cuda: bool, zero_stage: int, accumulation: int = 1) -> str:
    """Return what model.compile comes to on a run's device and ZeRO stage.

    Args:
        setting: of `SETTINGS`. "auto" is "layers" on CUDA below ZeRO 3, else "off".
        on_cuda: whether the run is on CUDA.
        zero_stage: 0 to 3.
        accumulation: micro-steps of a step.

    Returns:
        "off", "layers" or "layers-cudagraphs".

    Raises:
        ConfigError: compiling is asked for with ZeRO 3, or without CUDA; CUDA graphs with gradients that add up in
            `.grad`.
    """
    if setting == AUTO:
        return LAYERS if on_cuda and zero_stage < 3 else OFF
    if setting != OFF and zero_stage == 3:
        raise ConfigError(
            f"model.compile = {setting!r} with zero_optimization.stage = 3: its hooks bring and take a layer's "
            'parameters in the midst of what would be compiled; write "off" or "auto", or take a lower stage'
        )
    if setting != OFF and not on_cuda:
        raise ConfigError(f'model.compile = {setting!r}: needs CUDA; write "auto" or "off"')
    if setting == LAYERS_CUDA_GRAPHS and zero_stage == 0 and accumulation > 1:
        raise ConfigError(
            f"model.compile = {setting!r} with gradient_accumulation_steps = {accumulation} and no ZeRO: a graph's "
            'gradients are overwritten by the next micro-step; write zero_optimization.stage = 1, or "layers"'
        )
    return setting


def compile_layers(model: nn.Module, mode: str, *, backend: str = "inductor") -> int:
    """Compile every encoder layer of a BERT in place, before or after an engine has it; nothing runs yet.

    Args:
        model: holds `BertLayer`s.
        mode: "off": nothing is done; "layers"; "layers-cudagraphs": each layer's graph is also recorded as a CUDA
            graph, one for each size of T and P that comes, and gradients must not be added up from one micro-step
            to the next in the parameters' own `.grad` (ZeRO 1 and 2 add them up elsewhere).
        backend: of torch.compile, for tests.

    Returns:
        Layers compiled.
    """
    if mode == OFF:
        return 0
    options: dict[str, Any] = {"mode": _INDUCTOR_MODE[mode]} if backend == "inductor" else {}
    layers = [module for module in model.modules() if isinstance(module, BertLayer)]
    for layer in layers:
        layer.compile(backend=backend, **options)
    return len(layers)


def as_they_are(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context in which compiled layers run uncompiled; where none is compiled, nothing changes.

    Without a backward to come, a recorded CUDA graph of one layer would overwrite what the layer before it gave.
    """
    is_compiled = any(module._compiled_call_impl is not None for module in model.modules())
    context: AbstractContextManager[None] = torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()
    return context
