"""The settings of an audit: those of the training it looks ahead to."""

from __future__ import annotations

from dataclasses import dataclass

from pretrain.data.masking import num_predictions
from pretrain.data.pairing import PairingSettings
from runtime.command import ConfigError


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """What the pairs and masks depend on, and how much is shown.

    Attributes:
        pairing: What the pairs look like: seed, seq_len, short_seq_prob, nsp.
        mlm_probability: Share of the tokens to predict, above 0 and below 1.
        num_samples: Pairs to decode, 0 or more.
        num_draws: Predictions to draw at least, for the mask rates.
    """

    pairing: PairingSettings
    mlm_probability: float
    num_samples: int = 8
    num_draws: int = 200_000

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: A field is out of its range; names it.
        """
        num_predictions([self.pairing.seq_len], self.mlm_probability)
        if self.num_samples < 0:
            raise ConfigError(f"--samples {self.num_samples}: must be 0 or more")

    @property
    def max_tokens(self) -> int:
        """Most tokens of a pair, specials not counted."""
        return self.pairing.seq_len - self.pairing.num_specials
