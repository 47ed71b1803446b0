#!/usr/bin/env bash
# Runs the tests: `core` (under two minutes), `slow` (the rest), or `all` (core first, so that what is broken shows
# early). Further arguments go to pytest. What this machine cannot run is listed at the end with its reason.
# A few that fail are run again at the end, alone on the machine: what passes then is named as passed only the second
# time, what fails twice has failed. Bounds of time and memory are of the machine's other work too.
# Many wait more than they compute, so parts of each half run beside each other. Those that compare times come last,
# with nothing beside them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
suite=${1:-all}
if [ $# -gt 0 ]; then shift; fi
case $suite in
  core | slow | all) ;;
  *) echo "scripts/test.sh: suite '$suite' is none of: core, slow, all" >&2; exit 2 ;;
esac

# Many tests give root up: an ordinary user must be able to read what is tested.
ordinary=(setpriv --reuid=4242 --regid=4242 --clear-groups)
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null && ! "${ordinary[@]}" test -r "$PWD/envgym/__init__.py"; then
  echo "scripts/test.sh: ordinary users may not enter $PWD, so that their tests will fail;" \
    "move the checkout to where they may, such as /srv, or: chmod o+x its parent directories" >&2
fi

# Many small files: a tmpfs is tens of times faster for them, and nothing here must survive.
place=${TMPDIR:-/tmp}
[ -d /dev/shm ] && [ -w /dev/shm ] && place=/dev/shm
most_again=6
scratch=$(mktemp -d "$place/envgym-tests-XXXXXX")
started=
declare -A beside=() # the name of each process that plays a part
finish() {
  if [ ${#beside[@]} -gt 0 ]; then kill "${!beside[@]}" 2>/dev/null && wait "${!beside[@]}" || true; fi
  rm -rf "$scratch"
  [ -z "$started" ] || scripts/dockerd.sh stop
}
trap finish EXIT

# Tests on images and containers need these; where they cannot be had, such tests are skipped and say why.
# A mirror with newer packages makes another image than the recipe's: that is said, and taken.
"$VENV/bin/envgym" images build base --accept || true
if [ -z "${DOCKER_HOST:-}" ] && [ "$(id -u)" -eq 0 ]; then
  scripts/dockerd.sh status || started=yes
  DOCKER_HOST=$(scripts/dockerd.sh start) && export DOCKER_HOST || true
fi

# vLLM, where scripts/vllm_env.sh has made its environment.
vllm=${VLLM_VENV:-.vllm-venv}/bin/python
if [ -z "${ENVGYM_VLLM_PYTHON:-}" ] && [ -x "$vllm" ]; then
  ENVGYM_VLLM_PYTHON=$(cd "$(dirname "$vllm")" && pwd)/python && export ENVGYM_VLLM_PYTHON
fi

# make's options are for what it runs, not for the make of tasks in tests.
unset MAKEFLAGS MFLAGS MAKELEVEL
# What was compiled once is read by the other parts, by the slow half and by the hundreds of processes that tests start.
unset PYTHONDONTWRITEBYTECODE
# Ray makes its workers nice (15), which beside the other parts' processes is to starve.
export RAY_worker_niceness=0
# Plugins are named, not discovered: discovery loads what the suite does not use.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
run() { # NAME, then arguments of pytest; takes the place of the shell, so that whoever ends it ends pytest
  local name=$1
  shift
  HYPOTHESIS_STORAGE_DIRECTORY="$scratch/hypothesis-$name" exec "$VENV/bin/python" -m pytest -q -p no:cacheprovider \
    -p pytest_timeout -p _hypothesis_pytestplugin --basetemp="$scratch/$name" --durations=10 "$@"
}

# Of two exit codes of pytest the one that counts: 1 says that tests failed, more that it could not do its work.
worse() { echo $(($1 > $2 ? $1 : $2)); }

# What is played beside each other, the longest first: whichever ends makes room for the next, so all end together.
# Those of sandboxes look at what the whole machine holds, so they are in one, with the desktops, which leave marks there.
parts=(
  "sandboxes tests/sandboxes tests/security tests/environments/gui --ignore=tests/sandboxes/browser"
  "code_repair tests/environments/code_repair"
  "learn tests/agents/learn"
  "pages tests/environments/web tests/sandboxes/browser"
  "environments tests/environments --ignore=tests/environments/code_repair --ignore=tests/environments/web --ignore=tests/environments/gui"
  "agents tests/agents --ignore=tests/agents/learn"
)
alone=tests/test_benchmarks.py
rest=rest
for path in tests/*; do
  case $path in
    tests/sandboxes | tests/security | tests/environments | tests/agents | "$alone" | */conftest.py | */__pycache__) ;;
    *) rest+=" $path" ;;
  esac
done
parts+=("$rest")
# Twice as many as there are processors: most wait more than they compute.
at_once=$((2 * $(nproc)))

side_by_side() { # NAME, then arguments of pytest
  local suite=$1 status=0 part name paths
  shift
  for part in "${parts[@]}"; do
    [ ${#beside[@]} -lt "$at_once" ] || one_ends
    read -ra paths <<<"${part#* }"
    name=$suite-${part%% *}
    (ENVGYM_FAILED=$scratch/failed-$name run "$name" "$@" "${paths[@]}") >"$scratch/$name.log" 2>&1 &
    beside[$!]=$name
  done
  while [ ${#beside[@]} -gt 0 ]; do one_ends; done
  (run "$suite-alone" "$@" "$alone") || status=$(worse "$status" $?)
  return "$status"
}

one_ends() { # waits for one of those beside each other, and says what it said; the caller's status has its own in it
  local pid code=0
  while true; do
    for pid in "${!beside[@]}"; do
      kill -0 "$pid" 2>/dev/null && continue
      wait "$pid" || code=$?
      echo "scripts/test.sh: ${beside[$pid]}, ended after $SECONDS s:"
      cat "$scratch/${beside[$pid]}.log"
      unset "beside[$pid]"
      status=$(worse "$status" "$code")
      return
    done
    sleep 0.2
  done
}

again() { # the few tests that failed, alone; leaves the status as it is where there is nothing to repeat
  local failed=()
  [ "$status" -eq 1 ] || return "$status"
  mapfile -t failed < <(cat "$scratch"/failed* 2>/dev/null | sort -u)
  if [ ${#failed[@]} -eq 0 ] || [ ${#failed[@]} -gt "$most_again" ]; then return 1; fi
  echo "scripts/test.sh: ${#failed[@]} failed; once more, alone:" >&2
  printf '  %s\n' "${failed[@]}" >&2
  (ENVGYM_FAILED= ENVGYM_TURN=all run again "${failed[@]}") || return 1
  echo "scripts/test.sh: passed only the second time, alone: ${failed[*]}" >&2
}

status=0
if [ $# -gt 0 ]; then
  case $suite in
    core) (run core -m 'not slow' "$@") ;;
    slow) (run slow -m slow "$@") ;;
    all) (run all "$@") ;;
  esac
else
  export ENVGYM_FAILED=$scratch/failed
  [ "$suite" = slow ] || side_by_side core -m 'not slow' || status=$(worse "$status" $?)
  [ "$suite" = core ] || side_by_side slow -m slow || status=$(worse "$status" $?)
  again && status=0 || status=$?
fi
exit "$status"
