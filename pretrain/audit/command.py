"""The command `zerobert audit`: what training would see of a folder of shards, and what is wrong with it.

    python -m pretrain.audit.command shards --seq-len 128 --html audit.html

Each finding has a severity and a remedy (`findings`). The figures of the JSON file are described in `figures`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pretrain.audit.collect import Subject, collect
from pretrain.audit.figures import Audit
from pretrain.audit.findings import find
from pretrain.audit.page import render_page
from pretrain.audit.rules import SEVERE
from pretrain.audit.settings import AuditSettings
from pretrain.audit.text import render_text
from pretrain.audit.work import key_of, work_folder
from pretrain.data.pairing import PairingSettings
from pretrain.tokenizer import TokenizerInfo, load_tokenizer_info
from runtime.command import EXIT_DONE, EXIT_FAILED, ConfigError, run_command
from runtime.files import write_json, write_text
from tokenization.manifest import Manifest, load_manifest


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="zerobert audit", description="Show what training would see of shards, and what is wrong with them."
    )
    parser.add_argument("shards", type=Path, metavar="SHARDS", help="folder of shards")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="tokenizer folder (default: the one the manifest names)"
    )
    parser.add_argument("--seq-len", type=int, default=128, metavar="N", help="most tokens of a pair (default: 128)")
    parser.add_argument(
        "--short-seq-prob", type=float, default=0.1, metavar="X", help="share of short targets (default: 0.1)"
    )
    parser.add_argument(
        "--mlm-probability", type=float, default=0.15, metavar="X", help="share of tokens to predict (default: 0.15)"
    )
    parser.add_argument("--no-nsp", action="store_true", help="one segment, no next-sentence prediction")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the training (default: 0)")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="pairs to decode (default: 8)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 where a finding is severe")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one page with plots")
    parser.add_argument(
        "--work-dir",
        type=Path,
        metavar="DIR",
        help="where measures are kept until all is done, for a second call to go on from (default: SHARDS.audit-work)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: arguments after the command's name; None: those of the process.

    Returns:
        Exit code: 1 with --strict where a finding is severe, else 0.

    Raises:
        ConfigError: there are no shards, no tokenizer that fits them, or an argument is wrong.
    """
    arguments = build_parser().parse_args(argv)
    settings = AuditSettings(
        pairing=PairingSettings(
            seed=arguments.seed,
            seq_len=arguments.seq_len,
            short_seq_prob=arguments.short_seq_prob,
            nsp=not arguments.no_nsp,
        ),
        mlm_probability=arguments.mlm_probability,
        num_samples=arguments.samples,
    )
    manifest = load_manifest(arguments.shards)
    tokenizer_dir = find_tokenizer(manifest, arguments.tokenizer)
    _check_outputs(arguments, tokenizer_dir)
    tokenizer = _load_tokenizer(manifest, tokenizer_dir)
    key = key_of(manifest.fingerprint, tokenizer.fingerprint, asdict(settings))
    with work_folder(arguments.shards, arguments.work_dir, key) as work_dir:
        audit = collect(
            Subject(
                manifest=manifest,
                tokenizer_dir=tokenizer_dir,
                tokenizer=tokenizer,
                settings=settings,
                work_dir=work_dir,
            )
        )
        _write(audit, arguments)
    severe = [finding.name for finding in find(audit) if finding.severity == SEVERE]
    if arguments.strict and severe:
        sys.stderr.write(f"zerobert audit: --strict: severe findings: {', '.join(severe)}\n")
        return EXIT_FAILED
    return EXIT_DONE


def find_tokenizer(manifest: Manifest, given: Path | None) -> Path:
    """Return the tokenizer folder: the one given, else the one whose path stands in the manifest.

    Raises:
        ConfigError: None is given, and the manifest's is not there.
    """
    if given is not None:
        return given
    named = manifest.settings.get("tokenizer")
    if named is None:
        raise ConfigError(f"--tokenizer: is needed: the manifest of {manifest.directory} names no tokenizer folder")
    if not (Path(named) / "tokenizer.json").is_file():
        raise ConfigError(f"--tokenizer: is needed: {named}, which the manifest of {manifest.directory} names, is gone")
    return Path(named)


def _load_tokenizer(manifest: Manifest, directory: Path) -> TokenizerInfo:
    tokenizer = load_tokenizer_info(directory)
    if tokenizer.fingerprint != manifest.tokenizer_fingerprint:
        raise ConfigError(
            f"--tokenizer {directory}: its tokenizer.json has sha256 {tokenizer.fingerprint}, "
            f"but {manifest.directory} was made with {manifest.tokenizer_fingerprint}"
        )
    if tokenizer.size != manifest.vocab_size:
        raise ConfigError(
            f"{manifest.directory}: vocab_size is {manifest.vocab_size}, the tokenizer {directory} has {tokenizer.size}"
        )
    return tokenizer


def _check_outputs(arguments: argparse.Namespace, tokenizer_dir: Path) -> None:
    """Refuse what would fail after an hour of reading, and what would write over something that is read."""
    places: dict[str, Path] = {}
    for flag in ("json", "html"):
        path: Path | None = getattr(arguments, flag)
        if path is None:
            continue
        # a link is replaced, not followed: its own place counts
        place = path.parent.resolve() / path.name
        if path.is_dir() or not place.parent.is_dir():
            raise ConfigError(f"--{flag} {path}: must be a file in a folder that is there")
        for what, folder in {"folder of shards": arguments.shards, "tokenizer folder": tokenizer_dir}.items():
            if place.is_relative_to(folder.resolve()):
                raise ConfigError(f"--{flag} {path}: must be outside the {what} {folder}")
        places[flag] = place
    if len(places) > len(set(places.values())):
        raise ConfigError(f"--json and --html {arguments.html}: must be two files")


def _write(audit: Audit, arguments: argparse.Namespace) -> None:
    findings = find(audit)
    if arguments.json is not None:
        write_json(arguments.json, {**audit.as_json(), "findings": [asdict(finding) for finding in findings]})
    if arguments.html is not None:
        write_text(arguments.html, render_page(audit, findings))
    sys.stdout.write(render_text(audit, findings))


if __name__ == "__main__":
    run_command(main, "audit")
