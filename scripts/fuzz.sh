#!/usr/bin/env bash
# Fuzzes what hostile peers can say, guided by coverage: every target of tests/security/kit/fuzz_targets.py for FUZZ_S
# seconds (default 300), or those that are named. What fails is left in runs/fuzz/TARGET/crash-...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$PWD/${VENV:-.venv}/bin/python
guided=$PWD/tests/security/fuzz/guided.py
if [ $# -gt 0 ]; then targets=("$@"); else targets=(peer zygote decoder arrival interpreter place proxied); fi
failed=0
for target in "${targets[@]}"; do
  mkdir -p "runs/fuzz/$target/corpus"
  echo "fuzz: $target" >&2
  (cd "runs/fuzz/$target" && "$python" "$guided" "$target" corpus -max_len=400 -max_total_time="${FUZZ_S:-300}") || {
    echo "fuzz: $target fails; see runs/fuzz/$target, and put the file into tests/security/fuzz/found/$target" >&2
    failed=1
  }
done
exit "$failed"
