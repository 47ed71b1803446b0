#!/usr/bin/env bash
# Style, types and the import rules, with the tools of $VENV.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin=${VENV:-.venv}/bin
failed=0
for tool in 'ruff check .' 'ruff format --check .' 'mypy' 'lint-imports --no-cache'; do
  # shellcheck disable=SC2086  # the words of a command line
  "$bin"/$tool || { echo "check: '$tool' found something" >&2; failed=1; }
done
exit "$failed"
