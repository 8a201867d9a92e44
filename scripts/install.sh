#!/bin/sh
# Install the project and its tools into a virtual environment: sh scripts/install.sh .venv/bin/pip
# Without an NVIDIA GPU torch is the CPU build, which spares gigabytes of CUDA libraries.
set -eu
pip=$1
torch=$(sed -n 's/^torch==/torch==/p' constraints.txt)
if ! command -v nvidia-smi >/dev/null 2>&1; then
    "$pip" install --no-deps "$torch+cpu" ||
        "$pip" install --no-deps "$torch" --index-url https://download.pytorch.org/whl/cpu ||
        echo "no CPU build of $torch at hand: taking the default one" >&2
fi
"$pip" install -c constraints.txt -e '.[dev]'
