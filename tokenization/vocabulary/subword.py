"""Learns byte-level BPE and Unigram vocabularies for BERT, and writes any of the three kinds of tokenizer.

All have BERT's five special tokens at ids 0 to 4 and BERT's post-processor: [CLS] A [SEP] B [SEP], type ids 0 and 1.
Byte-level BPE has no unknown text: every byte is a token. Its pairs are merged in the order of count and ids, and ids
begin with the bytes in sorted order, so ties fall the same way every time (see `wordpiece`). Unigram is learned by
`unigram`, not by Hugging Face's trainer, whose sums follow a hash order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from runtime.files import write_json
from tokenization.vocabulary.alphabet import ALPHABET_LIMIT, choose_alphabet, script_of
from tokenization.vocabulary.trainer_input import fit_counts, trainer_lines
from tokenization.vocabulary.unigram import learn_unigram
from tokenization.vocabulary.wordpiece import (
    MODEL_MAX_LENGTH,
    SPECIAL_TOKENS,
    Vocabulary,
    check_size,
    check_words,
    learn_vocabulary,
    save_tokenizer,
)
from tokenization.vocabulary.words import WORD_MARK, Casing, WordSplitter

# Below what any text can cost: a special token is never the way to write ordinary text such as "[MASK]". The lowest
# score also sets the price of unknown characters, which nothing can avoid.
_SPECIAL_SCORE = -1000.0
_UNK_ID = SPECIAL_TOKENS.index("[UNK]")
_EAST_ASIAN = frozenset({"Hiragana", "Katakana", "Katakana-hiragana", "Cjk"})


def learn(
    splitter: WordSplitter,
    words: Mapping[str, int],
    characters: Mapping[str, int],
    vocab_size: int,
    min_frequency: int,
    alphabet_limit: int = ALPHABET_LIMIT,
) -> Vocabulary:
    """Learn a vocabulary of any kind.

    Args:
        splitter: the kind, and how the words were cut.
        words: count of each word.
        characters: count of each character of the text.
        vocab_size: tokens wanted, special ones included; the text may give fewer.
        min_frequency: least count of a pair that is merged, or of a piece of several characters.
        alphabet_limit: most different characters kept; byte-level BPE keeps all.

    Raises:
        ConfigError: there is no word, or vocab_size cannot hold the special tokens and the alphabet.
    """
    check_words(words)
    if splitter.model == "wordpiece":
        return learn_vocabulary(words, vocab_size, min_frequency, alphabet_limit, characters)
    if splitter.model == "bpe":
        return _learn_bpe(words, characters, vocab_size, min_frequency)
    return _learn_unigram(words, characters, vocab_size, min_frequency, alphabet_limit, splitter.casing)


def save(vocabulary: Vocabulary, splitter: WordSplitter, directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json; with WordPiece vocab.txt too.

    Args:
        vocabulary: what was learned.
        splitter: the kind of tokenizer, and its casing.
        directory: a folder that is there.
    """
    if splitter.model == "wordpiece":
        save_tokenizer(vocabulary.tokens, splitter.casing, directory)
        return
    build(vocabulary, splitter).save(str(directory / "tokenizer.json"))
    names = ("pad", "unk", "cls", "sep", "mask")
    config = {
        # Without it AutoTokenizer would make BERT's own tokenizer of it beside a config.json that says "bert".
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MODEL_MAX_LENGTH,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "do_lower_case": splitter.casing.lowercase,
        **{f"{name}_token": token for name, token in zip(names, SPECIAL_TOKENS, strict=True)},
    }
    write_json(directory / "tokenizer_config.json", config)


def build(vocabulary: Vocabulary, splitter: WordSplitter) -> Tokenizer:
    """Return the tokenizer of a BPE or Unigram vocabulary."""
    if splitter.model == "bpe":
        ids = {token: index for index, token in enumerate(vocabulary.tokens)}
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(vocabulary.merges)))
        # The space before the first word is not the text's.
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    else:
        scored = list(zip(vocabulary.tokens, vocabulary.scores, strict=True))
        tokenizer = Tokenizer(models.Unigram(vocab=scored, unk_id=_UNK_ID, byte_fallback=False))
        tokenizer.decoder = decoders.Metaspace(replacement=WORD_MARK, prepend_scheme="always")
    normalizer = splitter.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter.pre_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, SPECIAL_TOKENS.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _learn_bpe(
    words: Mapping[str, int], characters: Mapping[str, int], vocab_size: int, min_frequency: int
) -> Vocabulary:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    check_size(vocab_size, len(letters))
    fitted, least_count = fit_counts(words, min_frequency)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=least_count,
        show_progress=False,
        special_tokens=[*SPECIAL_TOKENS, *letters],
        initial_alphabet=letters,
    )
    tokenizer.train_from_iterator(trainer_lines(fitted), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = tuple((left, right) for left, right in model["merges"])
    return Vocabulary(tuple(tokens), choose_alphabet(characters, len(characters)), len(letters), merges=merges)


def _learn_unigram(
    words: Mapping[str, int],
    characters: Mapping[str, int],
    vocab_size: int,
    min_frequency: int,
    alphabet_limit: int,
    casing: Casing,
) -> Vocabulary:
    # What special tokens are written with is always known, so that they need not stand for themselves in a text.
    always = {WORD_MARK, "[", "]"}.union(*([] if casing.lowercase else SPECIAL_TOKENS))
    alphabet = choose_alphabet(characters, alphabet_limit, always)
    check_size(vocab_size, len(alphabet.kept))
    num_pieces = vocab_size - len(SPECIAL_TOKENS)
    pieces = learn_unigram(words, num_pieces, alphabet.kept, _groups(alphabet.kept), min_frequency)
    return Vocabulary(
        tokens=(*SPECIAL_TOKENS, *(text for text, _ in pieces)),
        alphabet=alphabet,
        alphabet_size=len(alphabet.kept),
        scores=(*([_SPECIAL_SCORE] * len(SPECIAL_TOKENS)), *(score for _, score in pieces)),
    )


def _groups(characters: tuple[str, ...]) -> list[int]:
    """Number characters so that two that may stand in one piece have the same number, as SentencePiece does.

    Letters of one script go together, digits, and other signs; Chinese characters and kana count as one script.
    """
    names = []
    for character in characters:
        script = script_of(character)
        names.append("Cjk" if script in _EAST_ASIAN else script)
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    return [-1 if c == WORD_MARK else numbers[name] for c, name in zip(characters, names, strict=True)]
