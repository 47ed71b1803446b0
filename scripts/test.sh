#!/usr/bin/env bash
# Runs the tests: `core` (under two minutes), `slow` (the rest), or `all` (core first, so that what is broken shows
# early). Further arguments go to pytest. What this machine cannot run is listed at the end with its reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
suite=${1:-all}
if [ $# -gt 0 ]; then shift; fi
case $suite in
  core) marked=(-m 'not slow') ;;
  slow) marked=(-m slow) ;;
  all) marked=() ;;
  *) echo "scripts/test.sh: suite '$suite' is none of: core, slow, all" >&2; exit 2 ;;
esac

# Many small files: a tmpfs is tens of times faster for them, and nothing here must survive.
place=${TMPDIR:-/tmp}
[ -d /dev/shm ] && [ -w /dev/shm ] && place=/dev/shm
scratch=$(mktemp -d "$place/envgym-tests-XXXXXX")
started=
finish() {
  rm -rf "$scratch"
  [ -z "$started" ] || scripts/dockerd.sh stop
}
trap finish EXIT

# Tests on images and containers need these; where they cannot be had, such tests are skipped and say why.
"$VENV/bin/envgym" images build base --accept || true
if [ -z "${DOCKER_HOST:-}" ] && [ "$(id -u)" -eq 0 ]; then
  scripts/dockerd.sh status || started=yes
  DOCKER_HOST=$(scripts/dockerd.sh start) && export DOCKER_HOST || true
fi

# Plugins are named, not discovered: discovery loads what the suite does not use.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 HYPOTHESIS_STORAGE_DIRECTORY="$scratch/hypothesis"
"$VENV/bin/python" -m pytest -q -p no:cacheprovider -p pytest_timeout -p _hypothesis_pytestplugin \
  --basetemp="$scratch/tmp" --durations=10 "${marked[@]}" "$@"
