"""How a step runs: all that knows DeepSpeed."""

import logging

_NOISE = (
    "Setting accelerator to CPU",
    "learning rate from scheduler before it has started",
)
"""Warnings of DeepSpeed's that every start provokes and no user can act on."""


class _WithoutNoise(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not any(noise in record.getMessage() for noise in _NOISE)


# Here, before DeepSpeed is imported, since its import warns already.
logging.getLogger("DeepSpeed").addFilter(_WithoutNoise())
