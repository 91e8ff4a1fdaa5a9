#!/bin/sh
# Runs tests/hf with another version of transformers: sh tests/hf/other_version.sh 5.17.0
# All else, torch included, is that of the Python in $PYTHON (.venv/bin/python).
set -eu
version=${1:-5.17.0}
python=$(cd "$(dirname "${PYTHON:-.venv/bin/python}")" && pwd)/python
venv=${VENV:-${TMPDIR:-/tmp}/statetrack-transformers-$version}
"$python" -m venv --without-pip "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -m pip freeze | grep -iE '^(numpy|safetensors)==' >"$venv/constraints.txt"
"$python" -m pip install --quiet --target "$site" --upgrade \
    --constraint "$venv/constraints.txt" "transformers==$version"
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/behind.pth"
"$venv/bin/python" -c "import transformers; assert transformers.__version__ == '$version'"
PYTHONPATH=$PWD/src "$venv/bin/python" -m pytest -p no:cacheprovider tests/hf
