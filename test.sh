#!/bin/sh
# Install tuimon with PyTorch and the tools into .venv if that has not been done, then run the tests.
#   sh test.sh                      everything
#   sh test.sh tests/unit -k ring   anything pytest understands
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
sh "$root/tools/setup.sh" torch,dev
cd "$root"
# One worker a core; a file stays on one worker, because its tests share processes. Files go out in
# the order of their folders: those with few and long tests come first, and leave no long tail.
exec .venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"
