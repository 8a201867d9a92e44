"""The encoder and the loss on a CPU, in kernels that do in one pass over memory what torch does in several."""
