"""Token ids as a person would read them, and text of any origin as something that can be shown without harm."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # Persian, Indic scripts and emoji are spelled with them
_SPACE_MARK = "▁"  # of Unigram and of BPE over words
_BYTE_LEVEL = '"ByteLevel"'
_SHOWN_SPACE = "␣"
_LONE_BYTE = re.compile("[\udc80-\udcff]")
_CUT_CHARACTER = re.compile("(⟨0x..⟩)+$")
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
    """One token, or a run of them, as it is read.

    Attributes:
        text: What it says, without the mark of a continued word or of a word's beginning.
        is_joined: Whether it goes on in the word of the token before it.
    """

    text: str
    is_joined: bool


class TokenReader:
    """Turns the ids of one tokenizer into text."""

    def __init__(self, directory: str | Path) -> None:
        """Open a tokenizer dir, which `load_tokenizer_info` has accepted."""
        self._tokenizer = Tokenizer.from_file(str(Path(directory) / "tokenizer.json"))
        settings = json.loads(self._tokenizer.to_str())
        self._prefix: str = settings["model"].get("continuing_subword_prefix") or ""
        self._is_byte_level = _BYTE_LEVEL in json.dumps([settings["pre_tokenizer"], settings["decoder"]])
        self._has_spaces = self._is_byte_level or (
            not self._prefix and any(token.startswith(_SPACE_MARK) for token in self._tokenizer.get_vocab())
        )

    def token(self, token_id: int) -> str:
        """Return the token itself, as it stands in the vocabulary; "⟨no token 70000⟩" for an unknown id."""
        return self._tokenizer.id_to_token(token_id) or f"⟨no token {token_id}⟩"

    def name(self, token_id: int) -> str:
        """Return a token as it is named in a table: "##s" as it is, "Ġthe" and "▁the" as "␣the"."""
        return self._spell([token_id]).replace(" ", _SHOWN_SPACE) if self._has_spaces else self.token(token_id)

    def piece(self, token_ids: Sequence[int]) -> Piece:
        """Return a run of tokens as it is read.

        A byte that is no whole character, as its other bytes stand in tokens beside the run, is shown as "⟨0xE2⟩".
        """
        if self._has_spaces:
            text = self._spell(token_ids)
            return Piece(text.removeprefix(" "), not text.startswith(" "))
        words = [self._word(token_id) for token_id in token_ids]
        rest = [word.text if word.is_joined else f" {word.text}" for word in words[1:]]
        return Piece("".join([*(word.text for word in words[:1]), *rest]), words[0].is_joined if words else False)

    def text(self, token_ids: Sequence[int], most: int = 64) -> str:
        """Return the first `most` tokens as text, with "…" where there are more."""
        text = self.piece(token_ids[:most]).text
        if len(token_ids) <= most:
            return text
        return _CUT_CHARACTER.sub("", text).rstrip() + _ELLIPSIS

    def _word(self, token_id: int) -> Piece:
        """Return a token of a tokenizer that marks continued words, or nothing."""
        token = self.token(token_id)
        is_joined = bool(self._prefix) and token.startswith(self._prefix)
        return Piece(token[len(self._prefix) :] if is_joined else token, is_joined)

    def _spell(self, token_ids: Sequence[int]) -> str:
        """Return the tokens of a tokenizer that writes the space before a word, end to end."""
        tokens = [self.token(token_id) for token_id in token_ids]
        if not self._is_byte_level:
            return "".join(tokens).replace(_SPACE_MARK, " ")
        text = b"".join(map(_bytes_of, tokens)).decode("utf-8", "surrogateescape")
        return _LONE_BYTE.sub(lambda match: f"⟨0x{ord(match[0]) - 0xDC00:02X}⟩", text)


def _bytes_of(token: str) -> bytes:
    """Return the bytes that a token of byte-level BPE stands for; an added token may hold other signs, and is text."""
    if all(letter in _BYTE_LETTERS for letter in token):
        return bytes(_BYTE_LETTERS[letter] for letter in token)
    return token.encode("utf-8")


def _byte_letters() -> dict[str, int]:
    """Return GPT-2's letter for each byte: visible Latin-1 for itself, then U+0100 and on for the others in order."""
    visible_bytes = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in visible_bytes]
    return {chr(byte): byte for byte in visible_bytes} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_LETTERS = _byte_letters()
