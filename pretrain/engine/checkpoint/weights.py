"""The fp32 master weights of a checkpoint, whatever ZeRO stage and precision wrote it."""

from __future__ import annotations

from torch import Tensor, nn

from pretrain.engine.checkpoint.folder import Checkpoint
from pretrain.engine.checkpoint.states import MASTER, read_parameters


def load_fp32_weights(checkpoint: Checkpoint, model: nn.Module) -> dict[str, Tensor]:
    """Gather the fp32 master weights of a checkpoint of any ZeRO stage, on one process, without a GPU.

    Args:
        checkpoint: of a run of this project.
        model: of the same shape; has the names of tied parameters.

    Returns:
        float32 tensors by the model's state dict names; tied ones are the same tensor.

    Raises:
        ConfigError: a file is missing, damaged or not DeepSpeed's.
    """
    parameters, _, _ = read_parameters(checkpoint, only_masters=True)
    masters = {name: states.tensor(MASTER) for name, states in parameters.items()}
    # Optimizers know a tied parameter by its first name alone.
    first_name = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        name: masters[first_name[id(tensor)]]
        for name, tensor in model.state_dict(keep_vars=True).items()
        if id(tensor) in first_name
    }
