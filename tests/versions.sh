#!/usr/bin/env bash
# Runs the tests that depend on the internals of PyTorch and CPython with other versions of both, and prints a table.
#
#     tests/versions.sh            the versions below for which a matching CPython is found (on the PATH, or pyenv's)
#     tests/versions.sh 2.4 2.8    some of them
#     tests/versions.sh --old      one old version and only the exactness tests, as `make test-old` does
#
# Creates and keeps environments in target/versions, or in the folder $MEMLAB_VERSIONS (5 GiB each). The newest version is
# that of .venv, whose pytest runs the tests in all environments.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=${MEMLAB_VERSIONS:-target/versions}

# PyTorch, its CPythons (the first one found is used), and packages from the same time.
versions='
2.1  3.9,3.10,3.11        torch==2.1.2  numpy<2  transformers==4.40.2
2.4  3.10,3.11,3.12,3.9   torch==2.4.1  numpy    transformers==4.48.3
2.6  3.12,3.13,3.11,3.10  torch==2.6.0  numpy    timm transformers==4.50.3
2.8  3.13,3.12,3.11,3.10  torch==2.8.0  numpy    timm transformers>=4.55,<5
2.11 3.12,3.13,3.11,3.10  torch==2.11.0 numpy    timm transformers>=4.55
'
tests='see/test_exact.py see/test_kinds.py see/test_layers.py tools/test_tracker.py tools/test_line_profiler.py see/test_annotate.py see/test_holders.py'
# One plan and one applied advice.
tests+=' know/test_plan.py::test_two_small_batches_give_the_others_to_the_byte[gan]'
tests+=' know/test_advice.py::test_a_change_gives_the_predicted_peak[gradients-gradients]'
# Tests of torch.compile, for the versions whose compiled code has lines. They take fifteen minutes per version.
compiled='see/test_compiled.py see/test_compiled_modes.py see/test_compiled_models.py'
compiled_since=2.6
old=2.4 # The version that `make test-old` uses.

# Prints the path of CPython $1.
find_python() {
    local candidate
    for candidate in "$HOME/.pyenv/versions/$1".*/bin/python "$(command -v "python$1")"; do
        # pyenv's shims are found but may not run.
        [ "$("$candidate" -c 'import sys, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ] &&
            echo "$candidate" && return
    done
    return 1
}

# Prints the Python of an environment with PyTorch $1, which it creates if needed. $2: CPythons; the rest: packages.
# Fails with 1 if no CPython is found, with 2 if the packages cannot be installed.
environment() {
    local torch=$1 pythons=$2 minor python made
    shift 2
    for minor in ${pythons//,/ }; do
        made=$folder/torch$torch-py$minor
        [ -e "$made/.installed" ] && echo "$made/bin/python" && return
    done
    for minor in ${pythons//,/ }; do
        python=$(find_python "$minor") || continue
        made=$folder/torch$torch-py$minor
        mkdir -p "$folder" && "$python" -m venv --clear "$made" >&2 &&
            "$made/bin/pip" install --quiet --disable-pip-version-check "$@" >&2 &&
            touch "$made/.installed" && echo "$made/bin/python" && return
        echo "memlab: PyTorch $torch could not be installed for CPython $minor" >&2
        return 2
    done
    echo "memlab: none of CPython ${pythons//,/, } found: the tests with PyTorch $torch are skipped" >&2
    return 1
}

# Runs the tests $2… with the Python $1; prints pytest's last line.
run() {
    local python=$1
    shift
    MEMLAB_PYTHON=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") PYTHONPATH=$PWD/python \
        .venv/bin/python -m pytest -q -n 2 --dist loadgroup -p no:cacheprovider -rfE "${@/#/tests/}"
}

# Succeeds if PyTorch $1 is older than $2.
is_before() {
    [ "$1" != newest ] && [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

if [ "${1:-}" = --old ]; then
    read -r torch pythons packages < <(grep "^$old " <<<"$versions")
    # Leaves out transformers, which does not matter for memory: the tests skip its model.
    read -ra packages <<<"${packages%transformers*}"
    python=$(environment "$torch" "$pythons" "${packages[@]}") || exit $(($? - 1))
    echo "memlab: PyTorch $torch, $("$python" --version)"
    run "$python" see/test_exact.py see/test_kinds.py see/test_holders.py see/test_agent.py::test_the_heap_search_holds_no_references
    exit
fi

wanted=${*:-2.1 2.4 2.6 2.8 2.11 newest}
failed=0
table=$(printf '| PyTorch | CPython |' && printf ' %s |' $tests $compiled &&
    printf '\n|---|---|' && printf -- '---|%.0s' $tests $compiled)
for torch in $wanted; do
    if [ "$torch" = newest ]; then
        python=.venv/bin/python
    else
        read -r torch pythons packages < <(grep "^$torch " <<<"$versions") ||
            { echo "memlab: no PyTorch $torch in $0" >&2 && exit 2; }
        read -ra packages <<<"$packages"
        python=$(environment "$torch" "$pythons" "${packages[@]}") || continue
    fi
    row=$("$python" -c 'import sys, torch; print(f"| {torch.__version__} | {sys.version.split()[0]} |")')
    for test in $tests $compiled; do
        if [[ " $compiled " == *" $test "* ]] && is_before "$torch" $compiled_since; then
            row+=" – |"
            continue
        fi
        output=$(PYTEST_ADDOPTS=--full run "$python" "$test" 2>&1) || { failed=1 && echo "$output" >&2; }
        summary=$(tail -n 1 <<<"$output" | sed 's/ in [0-9.]*s.*//; s/^=* //')
        row+=" $summary |"
        echo "PyTorch $torch: $test: $summary" >&2
    done
    table+=$'\n'$row
done
echo "$table"
exit $failed
