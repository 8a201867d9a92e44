"""Token ids as a person would read them, and text of any origin as something that can be shown without harm."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # Persian, Indic scripts and emoji are spelled with them
_WORD_STARTS = ("Ġ", "▁")  # byte-level BPE; Unigram and BPE over words
_ELLIPSIS = " …"


def visible(text: str) -> str:
    r"""Return a text in which nothing acts in secret: control, format and unassigned characters stand as ⟨U+202E⟩.

    So it can neither turn the direction of what stands beside it nor command a terminal.
    """
    if text.isprintable():
        return text
    return "".join(f"⟨U+{ord(sign):04X}⟩" if _is_hidden(sign) else sign for sign in text)


def _is_hidden(sign: str) -> bool:
    return unicodedata.category(sign) in _HIDDEN and sign not in _JOINERS


class Piece(NamedTuple):
    """One token as it is read.

    Attributes:
        text: What it says, without the mark of a continued word.
        is_joined: Whether it goes on in the word of the token before it.
    """

    text: str
    is_joined: bool


class TokenReader:
    """Turns the ids of one tokenizer into text."""

    def __init__(self, directory: str | Path) -> None:
        """Open a tokenizer dir, which `load_tokenizer_info` has accepted."""
        self._tokenizer = Tokenizer.from_file(str(Path(directory) / "tokenizer.json"))
        model = json.loads(self._tokenizer.to_str())["model"]
        self._prefix: str = model.get("continuing_subword_prefix") or ""
        self._has_word_starts = model["type"] != "WordPiece" and not self._prefix

    def token(self, token_id: int) -> str:
        """Return the token itself, as it stands in the vocabulary; "⟨no token 70000⟩" for an unknown id."""
        return self._tokenizer.id_to_token(token_id) or f"⟨no token {token_id}⟩"

    def piece(self, token_id: int) -> Piece:
        """Return a token as it is read."""
        token = self.token(token_id)
        if self._prefix and token.startswith(self._prefix):
            return Piece(token[len(self._prefix) :], True)
        if self._has_word_starts:
            starts = token.startswith(_WORD_STARTS)
            return Piece(self._tokenizer.decode([token_id], skip_special_tokens=False).strip() or token, not starts)
        return Piece(token, False)

    def text(self, token_ids: Sequence[int], most: int = 64) -> str:
        """Return the first `most` tokens as text, with "…" where there are more."""
        parts: list[str] = []
        for token_id in token_ids[:most]:
            piece = self.piece(token_id)
            parts.append(piece.text if piece.is_joined or not parts else f" {piece.text}")
        return "".join(parts) + (_ELLIPSIS if len(token_ids) > most else "")
