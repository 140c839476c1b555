#!/bin/sh
# Make .venv in the checkout and install tuimon there with the pinned versions.
#   sh tools/setup.sh torch | torch,dev
# Says nothing and changes nothing when everything is in place. PYTHON names the interpreter to use.
set -eu
extras=$1
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
needed=$(sed -n 's/^requires-python = ">=\(.*\)"/\1/p' pyproject.toml)

say() { printf 'tuimon: %s\n' "$1" >&2; }

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < tuple(map(int, sys.argv[1].split("."))))' \
        "$needed" >/dev/null 2>&1
}

pick_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    say "no Python $needed or newer found; install one, or name it: PYTHON=/path/to/python sh start.sh"
    exit 2
}

# What was installed last, and the checksum of what it was installed from.
stamp=.venv/tuimon-installed
sources=$(cat pyproject.toml constraints.txt | cksum)
if [ -x .venv/bin/python ]; then
    case "$(cat "$stamp" 2>/dev/null)" in
    "$extras $sources" | "$extras,dev $sources") exit 0 ;;
    esac
fi
if ! new_enough .venv/bin/python; then
    python=$(pick_python) || exit 2
    say "making .venv with $python"
    if ! "$python" -m venv --clear .venv; then
        say "could not make .venv; on Debian and Ubuntu: apt install python3-venv"
        exit 2
    fi
fi
say "installing tuimon[$extras] into .venv (the first time PyTorch is fetched: minutes)"
if ! .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    -c constraints.txt -e ".[$extras]" >&2; then
    say "pip could not install tuimon[$extras]; its own message stands above"
    exit 2
fi
printf '%s\n' "$extras $sources" >"$stamp"
