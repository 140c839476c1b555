#!/bin/sh
# Everything about the code that needs no run of it: lint, format, types, walls, sizes.
# CI and pre-commit both call this file. Every check runs; the exit status is 1 if any failed.
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root" || exit 2
bin=${TUIMON_CHECK_BIN:-.venv/bin}
failed=''

check() {
    name=$1
    shift
    began=$(date +%s)
    "$@"
    status=$?
    printf -- '-- %-8s %s (%s s)\n' "$name" \
        "$([ $status -eq 0 ] && echo ok || echo FAILED)" "$(($(date +%s) - began))"
    [ $status -eq 0 ] || failed="$failed $name"
}

check lint "$bin/ruff" check --quiet .
check format "$bin/ruff" format --check --quiet .
check types "$bin/mypy"
check walls "$bin/lint-imports" --no-cache
check sizes "$bin/python" tools/check_sizes.py

[ -z "$failed" ] || { printf 'failed:%s\n' "$failed" && exit 1; }
