"""What pretraining must know of a tokenizer: its ids by name, and the fingerprint that shards and runs carry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from pretrain.data.masking import Vocabulary
from runtime.command import ConfigError
from tokenization.manifest import tokenizer_fingerprint

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class TokenizerInfo:
    """A tokenizer as pretraining sees it."""

    fingerprint: str
    """sha256 of tokenizer.json."""
    token_ids: dict[str, int]
    """Every token and its id."""
    vocabulary: Vocabulary
    """What the data path needs."""

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.token_ids)


def load_tokenizer_info(directory: str | Path) -> TokenizerInfo:
    """Read a tokenizer dir; ids are looked up by name, whatever their order.

    Args:
        directory: holds tokenizer.json.

    Raises:
        ConfigError: no tokenizer.json, not a tokenizer, one of the five special tokens missing, or ids with gaps.
    """
    path = Path(directory) / "tokenizer.json"
    fingerprint = tokenizer_fingerprint(directory)
    try:
        token_ids = Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True)
    except Exception as error:  # tokenizers raises bare Exception  # noqa: BLE001
        raise ConfigError(f"{path}: not a tokenizer: {error}") from None
    missing = [token for token in SPECIAL_TOKENS if token not in token_ids]
    if missing:
        raise ConfigError(f"{path}: special token {missing[0]} is missing; BERT needs {' '.join(SPECIAL_TOKENS)}")
    if max(token_ids.values()) != len(token_ids) - 1:
        raise ConfigError(
            f"{path}: {len(token_ids)} tokens, but the highest id is {max(token_ids.values())}: ids must have no gaps"
        )
    ids = {token: token_ids[token] for token in SPECIAL_TOKENS}
    vocabulary = Vocabulary(
        size=len(token_ids),
        pad_id=ids["[PAD]"],
        cls_id=ids["[CLS]"],
        sep_id=ids["[SEP]"],
        mask_id=ids["[MASK]"],
        special_ids=tuple(sorted(ids.values())),
    )
    return TokenizerInfo(fingerprint, token_ids, vocabulary)
