#!/usr/bin/env bash
# A Docker engine of this checkout's own, for tests and benchmarks: `start` prints its address, `stop` ends it,
# `status` succeeds while it runs.
# It listens on a private socket and leaves the host's network alone (no bridge, no iptables), so every container
# must have network mode "none" or "host". Both commands may be repeated. Its images stay on disk between runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PATIENCE_S=60
name=dockerd-$(pwd -P | sha256sum | cut -c1-8)
place=${ENVGYM_DOCKERD:-${XDG_CACHE_HOME:-$HOME/.cache}/envgym/$name}
socket=$place/docker.sock
address=unix://$socket

say() { printf 'dockerd: %s\n' "$*" >&2; }

stop_with() { say "$*"; exit 1; }

# Whether the recorded process is a dockerd of ours: a pid alone may be another process by now.
living() {
  local pid
  pid=$(cat "$place/pid" 2>/dev/null) || return 1
  { tr "\0" " " <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qF -- "--pidfile $place/pid"
}

answers() { docker -H "$address" version >/dev/null 2>&1; }

# gVisor where it is installed; its other platform, kvm, hangs on machines whose /dev/kvm is not a real one.
write_config() {
  local runsc
  runsc=$(command -v runsc || true)
  if [ -n "$runsc" ]; then
    printf '{"runtimes":{"runsc":{"path":"%s","runtimeArgs":["--platform=ptrace","--network=none"]}}}\n' "$runsc"
  else
    echo '{}'
  fi >"$place/daemon.json"
}

start() {
  [ "$(id -u)" -eq 0 ] || stop_with "starting an engine needs root; set DOCKER_HOST to one that runs"
  command -v dockerd >/dev/null || stop_with "dockerd is not installed (Debian: apt-get install docker.io)"
  [ ${#socket} -lt 100 ] || stop_with "$socket is too long for a socket; set ENVGYM_DOCKERD to a shorter path"
  mkdir -p -m 0700 "$place"
  exec 9>"$place/lock"
  flock 9
  if ! living; then
    rm -f "$place/pid" "$socket"
    write_config
    setsid dockerd --config-file "$place/daemon.json" --data-root "$place/data" --exec-root "$place/exec" \
      --pidfile "$place/pid" -H "$address" --iptables=false --ip6tables=false --ip-forward=false --bridge=none \
      >"$place/log" 2>&1 </dev/null 9>&- &
  fi
  local deadline=$((SECONDS + PATIENCE_S))
  until answers; do
    [ $SECONDS -lt $deadline ] || stop_with "no answer after $PATIENCE_S s: $(tail -n 3 "$place/log")"
    if [ $SECONDS -gt $((deadline - PATIENCE_S + 5)) ] && ! living; then
      stop_with "it ended: $(tail -n 3 "$place/log")"
    fi
    sleep 0.1
  done
  echo "$address"
}

stop() {
  local pid deadline=$((SECONDS + PATIENCE_S))
  living || return 0
  pid=$(cat "$place/pid")
  kill "$pid"
  while living; do
    [ $SECONDS -lt $deadline ] || stop_with "process $pid did not end within $PATIENCE_S s"
    sleep 0.1
  done
}

case ${1:-} in
  start) start ;;
  stop) stop ;;
  status) living ;;
  *) echo "usage: scripts/dockerd.sh start|stop|status" >&2; exit 2 ;;
esac
