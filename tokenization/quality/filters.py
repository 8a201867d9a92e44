"""datatrove's document filters by name, as a command line gives them: `NAME` or `NAME:key=value,key=value`.

A value is JSON, or else plain text: `min_doc_words=20`, `split_paragraph=false`, `min_stop_words=null`,
`languages=["en","de"]`, `regex_exp=lorem (ipsum|dolor)`. Every filter is tried on a short text before any work
starts, so that a missing package or file is a message then, not a traceback in a task.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, get_type_hints

from datatrove.data import Document
from pydantic import TypeAdapter, ValidationError

from runtime.command import ConfigError, did_you_mean

# Parameters that the command sets, or that make no sense here.
_LANGUAGE_PARAMETERS = ("language", "default_language")
_NOT_SETTABLE = ("self", "exclusion_writer", "batch_size", *_LANGUAGE_PARAMETERS)
_REFUSED = {
    "LambdaFilter": "takes Python code, which a flag cannot hold",
    "URLFilter": "judges URLs; text alone is read here",
}
_NAME = re.compile(r"\s*(\w+)\s*(?::|$)")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*")
_NEXT = re.compile(r"\s*,(?=\s*[A-Za-z_]\w*\s*=)")
_SAMPLE = "The quick brown fox is on its way to the river, and that is where the lazy dog will have to be.\n" * 5


@dataclass(frozen=True)
class FilterSpec:
    """A filter and its parameters, checked against the filter's own.

    Args:
        name: of a class of datatrove.pipeline.filters.
        parameters: by name; what is left out has the filter's default.
    """

    name: str
    parameters: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> FilterSpec:
        """Read `NAME:key=value,key=value`.

        Raises:
            ConfigError: there is no such filter or parameter, a parameter is missing or of the wrong type.
        """
        head = _NAME.match(text)
        if head is None:
            raise ConfigError(f"--filter {text}: write NAME or NAME:key=value,key=value")
        name = head[1]
        known = _parameters_of(_find(name))
        given = _split(text, head.end())
        for key, (raw, _) in given.items():
            if key in _LANGUAGE_PARAMETERS:
                raise ConfigError(f"--filter {name}: {key}={raw}: follows the documents' language (--language)")
            if key not in known:
                raise ConfigError(f"--filter {name}: no parameter {key!r}{did_you_mean(key, known)}; {_list(known)}")
        for key, parameter in known.items():
            if parameter.default is parameter.empty and key not in given:
                raise ConfigError(f"--filter {name}: parameter {key!r} is missing; {_list(known)}")
        return cls(name, {key: _typed(name, known[key], *value) for key, value in given.items()})

    def __str__(self) -> str:
        """Return it as `parse` takes it."""
        written = ",".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in self.parameters.items())
        return f"{self.name}:{written}" if written else self.name

    def open(self, language: str) -> TextFilter:
        """Make the filter and try it on a short text.

        Args:
            language: code such as "en", for filters that part words or sentences.

        Raises:
            ConfigError: a package, file or network is missing, the language is unknown to it, or a parameter
                has a value that it refuses.
        """
        filter_class = _find(self.name)
        accepted = inspect.signature(filter_class).parameters
        parameters: dict[str, Any] = {key: language for key in _LANGUAGE_PARAMETERS if key in accepted}
        parameters.update(self.parameters)
        if "seed" in accepted and parameters.get("seed") is None:
            parameters["seed"] = 0  # the same documents stay in every run
        try:
            opened = TextFilter(self.name, filter_class(**parameters))
            if "language" in accepted:
                # A filter may be done with a text before it needs the words.
                words = importlib.import_module("datatrove.utils.word_tokenizers").load_word_tokenizer(language)
                words.word_tokenize(_SAMPLE)
                words.span_tokenize(_SAMPLE)
            opened.try_on(_SAMPLE)
        except Exception as error:  # noqa: BLE001  filters raise whatever the packages below them do
            _refuse(self, language, error)
        return opened


class TextFilter:
    """A filter at work.

    Args:
        name: of its class.
        opened: an object of that class.
    """

    def __init__(self, name: str, opened: Any) -> None:
        self.name = name
        self._filter = opened

    def judge(self, text: str) -> tuple[str, str | None]:
        """Return the text, which the filter may have shortened, and why it is to be dropped (None: it stays).

        Raises:
            ConfigError: the filter fails on this text.
        """
        try:
            return self.try_on(text)
        except Exception as error:
            raise ConfigError(
                f"--filter {self.name}: fails on the document that begins {text[:80]!r}: "
                f"{type(error).__name__}: {error}; leave the filter out, or this document"
            ) from error

    def try_on(self, text: str) -> tuple[str, str | None]:
        """Do what `judge` does, and raise whatever the filter does."""
        document = Document(text=text, id="")
        result = self._filter.filter(document)
        is_kept, why = result if isinstance(result, tuple) else (result, None)
        left = document.text.strip()
        if is_kept and left:
            return left, None
        if is_kept:
            why = "nothing left"
        return text, f"filter {self.name}: {why}" if why else f"filter {self.name}"


def filter_names() -> list[str]:
    """Return the names of all filters that can be asked for."""
    module = importlib.import_module("datatrove.pipeline.filters")
    base = importlib.import_module("datatrove.pipeline.filters.base_filter").BaseFilter
    classes = inspect.getmembers(module, lambda value: inspect.isclass(value) and issubclass(value, base))
    return [name for name, found in classes if found is not base and name not in _REFUSED]


def _find(name: str) -> Callable[..., Any]:
    if name in _REFUSED:
        raise ConfigError(f"--filter {name}: {_REFUSED[name]}; known: {', '.join(filter_names())}")
    if name not in filter_names():
        known = filter_names()
        raise ConfigError(f"--filter {name}: no such filter{did_you_mean(name, known)}; known: {', '.join(known)}")
    found: Callable[..., Any] = getattr(importlib.import_module("datatrove.pipeline.filters"), name)
    return found


def _parameters_of(filter_class: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that can be set, with their types resolved."""
    hints = get_type_hints(filter_class.__init__)
    return {
        name: parameter.replace(annotation=hints.get(name, type(parameter.default)))
        for name, parameter in inspect.signature(filter_class).parameters.items()
        if name not in _NOT_SETTABLE
    }


def _list(parameters: Mapping[str, inspect.Parameter]) -> str:
    described = [
        name if parameter.default is parameter.empty else f"{name}={json.dumps(parameter.default)}"
        for name, parameter in parameters.items()
    ]
    return f"it has {', '.join(described)}" if described else "it has none"


def _split(text: str, start: int) -> dict[str, tuple[str, Any]]:
    """Return (as written, value) by name of what begins at `start`."""
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    found: dict[str, tuple[str, Any]] = {}
    while start < len(text):
        key = _KEY.match(text, start)
        if key is None:
            raise ConfigError(f"--filter {text}: {text[start:]!r} is not key=value; write NAME:key=value,key=value")
        if key[1] in found:
            raise ConfigError(f"--filter {text}: {key[1]} stands twice; keep one")
        try:
            value, end = decoder.raw_decode(text, key.end())
            is_json = end == len(text.rstrip()) or _NEXT.match(text, end) is not None
        except ValueError:
            is_json = False
        if not is_json:
            following = _NEXT.search(text, key.end())
            end = following.start() if following else len(text)
            value = text[key.end() : end]
        found[key[1]] = (text[key.end() : end], value)
        following = _NEXT.match(text, end)
        start = following.end() if following else len(text)
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _typed(name: str, parameter: inspect.Parameter, raw: str, value: Any) -> Any:
    """Return the value as the parameter's type.

    Raises:
        ConfigError: it is of another type.
    """
    kind: Any = TypeAdapter(parameter.annotation)
    if value is None and parameter.default is None:
        return None
    for candidate in (value, raw):  # `regex_exp=1999` is text, though it reads as a number
        try:
            return kind.validate_json(json.dumps(candidate), strict=True)
        except ValidationError:
            continue
    if isinstance(parameter.default, tuple) and _is_alike(value, parameter.default):
        return value
    wanted = inspect.formatannotation(parameter.annotation)
    default = "" if parameter.default is parameter.empty else f" (default {json.dumps(parameter.default)})"
    raise ConfigError(f"--filter {name}: {parameter.name}={raw}: takes {wanted}{default}")


def _is_alike(value: Any, default: Any) -> bool:
    """Return whether a list stands for a default of nested tuples, as some are annotated too narrowly."""
    if not isinstance(default, tuple):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if not isinstance(value, list):
        return False
    if isinstance(default[0], tuple):
        return all(_is_alike(one, default[0]) for one in value)
    return len(value) == len(default) and all(map(_is_alike, value, default))


def _refuse(spec: FilterSpec, language: str, error: Exception) -> NoReturn:
    """Raise a `ConfigError` that says what the filter lacks."""
    what = f"--filter {spec}: cannot be used"
    if isinstance(error, ImportError):
        raise ConfigError(f"{what}: {error}") from error
    if isinstance(error, OSError):
        raise ConfigError(
            f"{what}: {type(error).__name__}: {error}; it needs a file that is not here (what datatrove fetches "
            "at first use, it can fetch only where there is a network)"
        ) from error
    raise ConfigError(f"{what} (language {language!r}): {type(error).__name__}: {error}") from error
