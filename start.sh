#!/bin/sh
# Install tuimon with PyTorch into .venv if that has not been done, then run it.
#   sh start.sh               the default demo: a training in trouble, and the live view on it
#   sh start.sh demo --list   any tuimon command
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
sh "$root/tools/setup.sh" torch
[ $# -gt 0 ] || set -- demo
exec "$root/.venv/bin/tuimon" "$@"
