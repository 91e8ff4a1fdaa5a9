#!/bin/sh
# Tries a quick part of the tests with other versions of Python and torch, and prints a table.
#
#   sh tests/matrix.sh                          3.11 to 3.14, each with torch 2.6.0, pinned and newest
#   sh tests/matrix.sh 3.12:2.6.0 3.13:newest   only these
#   sh tests/matrix.sh 3.13:none                without torch: what needs none
#
# A cell is PYTHON:TORCH. TORCH is a version; `pinned`, the one of constraints.txt with all else that
# is pinned there; `newest`; or `none`. Everything but a pinned cell takes the newest packages that fit.
# A Python that is not found here leaves its cells empty. Every cell gets an environment of its own
# below $MATRIX (by default a folder of $TMPDIR) and removes it, unless KEEP=1, which uses it again the
# next time. A CUDA build of torch takes 4 to 6 GB.
# To try CPU builds, set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL as PyTorch's install page says.
# Logs stay in $MATRIX. Exit code 1: a cell failed.
set -eu
cd "$(dirname "$0")/.."
place=${MATRIX:-${TMPDIR:-/tmp}/statetrack-matrix}
mkdir -p "$place"
tests="tests/test_config.py tests/automata/test_machine.py tests/ops/test_checks.py
    tests/ops/test_packing.py tests/layers/test_base.py tests/layers/test_registry.py
    tests/models/test_tagger.py tests/models/test_causal_lm.py tests/training/test_engine.py
    tests/training/test_run.py tests/runs tests/compiler/test_network.py tests/cli/test_app.py
    tests/cli/test_train.py"
without_torch="tests/automata/test_dot.py tests/automata/test_groups.py
    tests/automata/test_monoid.py tests/automata/test_named.py tests/automata/test_one_layer.py
    tests/automata/test_split.py"

# The interpreter of a version: python3.12 on the PATH, or one of pyenv's. A pyenv shim may be there
# and lead nowhere, so it has to run.
find_python() {
    for found in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        "$found" -c "import sys; print(sys.executable)" 2>/dev/null && return
    done
    return 1
}

# Fills an environment; says nothing, so that a log has what went wrong.
install() {
    pip="$1/bin/python -m pip install --quiet --disable-pip-version-check"
    testing="pytest hypothesis jaxtyping>=0.3 beartype"
    case $2 in
        pinned) $pip --constraint constraints.txt --editable ".[cli,cpu,automata,report,pandas,polars]" $testing ;;
        none)
            $pip hatchling editables numpy $testing "automata-lib>=9.2,<10" &&
                $pip --no-deps --no-build-isolation --editable .
            ;;
        newest) $pip --upgrade torch --editable ".[cli,cpu,automata,report,pandas,polars]" $testing ;;
        *) $pip "torch==$2" --editable ".[cli,cpu,automata,report,pandas,polars]" $testing ;;
    esac
}

row() { printf '| %-8s | %-14s | %s |\n' "$1" "$2" "$3" | tee -a "$place/table.md"; }

# One cell: a row of the table.
try() {
    version=$1 torch=$2 venv=$place/$1-$2 log=$place/$1-$2.log
    if ! python=$(find_python "$version"); then
        row "$version" "$torch" "not tried: no Python $version here"
        return 0
    fi
    : >"$log"
    if ! [ -e "$venv/installed" ] &&
        ! { "$python" -m venv --clear "$venv" && install "$venv" "$torch"; } >"$log" 2>&1; then
        row "$version" "$torch" "not installed: $(grep -m 1 ERROR "$log" || tail -n 1 "$log")"
        rm -rf "$venv"
        return 1
    fi
    touch "$venv/installed"
    version=$("$venv/bin/python" -c 'import platform; print(platform.python_version())')
    chosen=$tests options="" installed=none
    if [ "$torch" = none ]; then
        chosen=$without_torch options=--noconftest
    else
        installed=$("$venv/bin/python" -c 'import torch; print(torch.__version__)')
    fi
    outcome=0
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pytest -p no:cacheprovider -m "not slow" $options $chosen \
        >>"$log" 2>&1 || outcome=1
    row "$version" "$installed" "$(tail -n 1 "$log")"
    [ "${KEEP:-0}" = 1 ] || rm -rf "$venv"
    return $outcome
}

[ $# -gt 0 ] || for version in 3.11 3.12 3.13 3.14; do
    set -- "$@" "$version:2.6.0" "$version:pinned" "$version:newest"
done
: >"$place/table.md"
row Python torch outcome
row --- --- ---
failed=0
for cell in "$@"; do
    try "${cell%%:*}" "${cell##*:}" || failed=1
done
exit $failed
