#!/usr/bin/env bash
# Creates the virtual environment $1 with the packages of $2, using the Python $3.
set -euo pipefail
venv=$1 requirements=$2 python=$3

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    { echo "memlab: $python is older than 3.10: say 'make PYTHON=python3.12 …' for another one" >&2; exit 1; }
if [ -L "$venv" ]; then
    # The environment belongs to another checkout, which would lose its packages.
    echo "memlab: $venv is a symbolic link: remove it, or 'touch $venv/.installed' to use it as it is" >&2
    exit 1
fi
if ! "$python" -m venv "$venv"; then
    # Debian ships Python without the module that creates environments.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq python3-venv
        "$python" -m venv --clear "$venv"
    else
        echo "memlab: $python cannot make virtual environments: 'apt-get install python3-venv' first" >&2
        exit 1
    fi
fi
"$venv/bin/pip" install --quiet --upgrade pip
"$venv/bin/pip" install --quiet --requirement "$requirements"
