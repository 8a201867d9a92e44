"""Opens the input: finds the files, settles the kind of each, and tells what is wrong before any work."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runtime.command import ConfigError
from tokenization.documents.beginning import examine
from tokenization.documents.discover import find_files
from tokenization.documents.model import COLUMN_KINDS, FIELD_KINDS, NoLanguageFieldError, ReadSettings, Source, few

logger = logging.getLogger(__name__)

_LAYOUTS = {
    "line": "documents are one a line",
    "blank": "documents are parted by blank lines",
    "file": "a file is a document",
}


def open_sources(inputs: Sequence[str | Path], settings: ReadSettings) -> list[Source]:
    """Find the input files and settle the kind of each by its name and its beginning.

    Args:
        inputs: files, in the order in which they are read, folders, whose supported files are read by name, patterns,
            fsspec URLs, or "dataset:NAME[/CONFIG][:SPLIT]".
        settings: how they are read.

    Raises:
        ConfigError: a path is missing, of an unsupported kind or named twice; a flag fits none of the files; no file
            holds text; or the policy is "fail" and the beginning of a file is not as it should be.
    """
    sources = [_examine(source) for source in find_files(inputs, settings)]
    _check_language_field(sources, settings)
    _check_flags(sources, settings)
    if all(source.refusal for source in sources):
        raise ConfigError(f"{sources[0].path}: {sources[0].refusal}; no other file of --input can be read")
    if not any(source.text_bytes for source in sources):
        raise ConfigError(f"{sources[0].path}: holds no text, nor does any other file of --input")
    for layout, count in sorted(Counter(source.kind for source in sources if source.kind in _LAYOUTS).items()):
        name = next(source.path for source in sources if source.kind == layout)
        more = f" and {count - 1} more" if count > 1 else ""
        logger.info("%s%s: %s (--txt-layout %s)", name, more, _LAYOUTS[layout], settings.layout)
    return sources


def _examine(source: Source) -> Source:
    """Settle a file; one that cannot be read stays as a refused source where the policy goes on without it."""
    try:
        try:
            return examine(source)
        except NoLanguageFieldError:  # its documents are in the language of --language
            return examine(replace(source, settings=replace(source.settings, language_field=None)))
    except ConfigError as error:
        if source.settings.errors == "fail":
            raise
        logger.warning("%s; it is left out (--errors %s)", error, source.settings.errors)
        reason = str(error).removeprefix(f"{source.path}: ")
        return replace(source, kind=source.kind or "line", refusal=reason, text_bytes=0, num_pieces=1)


def _check_language_field(sources: Sequence[Source], settings: ReadSettings) -> None:
    """Refuse a language field that no file has; tell of files that lack it."""
    wanted = settings.language_field
    with_fields = [source for source in sources if source.kind in FIELD_KINDS and not source.refusal]
    lacking = [source.path for source in with_fields if source.settings.language_field != wanted]
    if lacking and len(lacking) == len(with_fields):
        try:
            examine(replace(with_fields[0], settings=settings))
        except NoLanguageFieldError as error:  # tells what the first one has instead
            raise ConfigError(f"--language-field {wanted}: no file has this field; {error}") from None
    if lacking:
        logger.info("%d files have no field %r: --language holds for them: %s", len(lacking), wanted, few(lacking))


def _check_flags(sources: Sequence[Source], settings: ReadSettings) -> None:
    """Refuse flags that none of the files heeds."""
    defaults = ReadSettings()
    has_fields = any(source.kind in FIELD_KINDS for source in sources)
    if settings.language_field is not None and not has_fields:
        raise ConfigError(f"--language-field {settings.language_field}: none of the files has fields")
    if settings.text_field != defaults.text_field and not has_fields:
        raise ConfigError(f"--text-field {settings.text_field}: none of the files has fields")
    if not settings.is_utf8 and all(source.kind in COLUMN_KINDS for source in sources):
        raise ConfigError(f"--encoding {settings.encoding}: .parquet and .arrow files tell their encoding themselves")
    if settings.layout != defaults.layout and not any(source.kind in _LAYOUTS for source in sources):
        raise ConfigError(f"--txt-layout {settings.layout}: none of the files is a .txt file")
