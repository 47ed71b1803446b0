#!/usr/bin/env bash
# The main job: tasks from real packages, then `envgym train --preset demo` on them. The packages named here have the
# fastest test suites of the recipe; five of them are held out. $OUT is the run folder, $TASKS the task file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin=${VENV:-.venv}/bin
OUT=${OUT:-runs/demo}
TASKS=${TASKS:-${OUT%/}-tasks.jsonl}
chosen=()
for name in anytree boltons funcy inflection parse pyrsistent tinydb toolz voluptuous webcolors \
  cachetools humanize schema sqlparse xmltodict; do chosen+=(--package "$name"); done

[ -e "$TASKS" ] || "$bin/envgym" tasks build --per-package "${PER_PACKAGE:-10}" "${chosen[@]}" --file "$TASKS" || [ -e "$TASKS" ]
resume=()
[ -e "$OUT/config.json" ] && resume=(--resume)
"$bin/envgym" train --preset demo --out "$OUT" --set "task_options.path=$TASKS" "${resume[@]}" "$@"
