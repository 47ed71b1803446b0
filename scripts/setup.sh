#!/usr/bin/env bash
# Makes the virtual environment ($VENV, default .venv) with everything that tests, training and the demo need.
# vLLM has an environment of its own beside it: see scripts/vllm_env.sh.
# Idempotent: it does nothing while pyproject.toml, constraints.txt, this file and the checkout's place are what they were.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
TORCH=2.13.0
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu

say() { printf 'setup: %s\n' "$*" >&2; }

stop() { say "$*"; exit 1; }

# The lists of packages are fetched once.
apt_install() {
  [ -n "${lists:-}" ] || { apt-get update -qq >&2 && lists=fetched; } || return
  apt-get install -y -qq --no-install-recommends "$@" >&2
}

# An interpreter that answers with its own path: a name on PATH may be a slow shim, or one for another version.
find_python() {
  local candidate found
  for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3 /usr/bin/python3; do
    found=$("$candidate" -c 'import ensurepip, sys, venv
if sys.version_info >= (3, 11): print(sys.executable)' 2>/dev/null) || continue
    if [ -n "$found" ]; then
      echo "$found"
      return
    fi
  done
  if [ "${1:-}" != again ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    say "installing python3 and python3-venv"
    apt_install python3 python3-venv
    find_python again
    return
  fi
  stop "no Python >= 3.11 with venv and ensurepip was found; install one (Debian: apt-get install python3 \
python3-venv) or name it: PYTHON=/path/to/python make setup"
}

system_packages() {
  local missing=() tool
  for tool in git bash; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    say "installing ${missing[*]}"
    apt_install "${missing[@]}" && return
  fi
  stop "missing: ${missing[*]}; this user may not install them: ask for '${missing[*]}' from the system's packages"
}

# What some tests and sandboxes stand on. Who may not install it still has the rest: `envgym doctor` and the tests say
# what is missing.
optional_packages() {
  local missing=() pair
  for pair in bwrap:bubblewrap dockerd:docker.io runc:runc podman:podman mmdebstrap:mmdebstrap newuidmap:uidmap iptables:iptables \
    ip:iproute2 nsenter:util-linux openssl:openssl faketime:faketime; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
  done
  # the browser, and letters for it
  command -v chromium >/dev/null || missing+=(chromium)
  # what benchmarks/web_speed.py drives a peer by
  command -v chromedriver >/dev/null || missing+=(chromium-driver)
  [ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || missing+=(fonts-dejavu-core)
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    say "installing ${missing[*]}"
    if ! apt_install "${missing[@]}"; then
      say "not installed: ${missing[*]}"
    fi
  else
    say "not here, and not needed for most things: ${missing[*]}"
  fi
}

# A display and its applications: at most 26 MB to download and 180 MB on disk, some 40 s. Debian's own Python speaks with them.
desktop_packages() {
  local missing=() pair
  for pair in /usr/bin/Xvfb:xvfb /usr/bin/openbox:openbox /usr/bin/dbus-daemon:dbus-daemon \
    /usr/share/dbus-1/session.conf:dbus-session-bus-common /usr/libexec/at-spi-bus-launcher:at-spi2-core \
    /usr/bin/python3:python3 /usr/bin/galculator:galculator /usr/bin/mousepad:mousepad \
    /usr/bin/xterm:xterm /usr/bin/gnumeric:gnumeric /usr/bin/thunar:thunar /usr/bin/X0tigervnc:tigervnc-scraping-server \
    /usr/share/fonts/truetype/dejavu:fonts-dejavu-core; do
    [ -e "${pair%%:*}" ] || missing+=("${pair##*:}")
  done
  compgen -G '/usr/lib/*/xfce4/xfconf/xfconfd' >/dev/null || missing+=(xfconf)
  compgen -G '/usr/lib/*/libXtst.so.6' >/dev/null || missing+=(libxtst6)
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    say "installing ${missing[*]}"
    if ! apt_install "${missing[@]}"; then
      say "not installed, so that nothing can be done on a desktop: ${missing[*]}"
    fi
  else
    say "not here, and needed for the desktop only: ${missing[*]}"
  fi
}

# Toolchains that tasks in other languages are built and tested with, where sandboxes see them: not in a home.
language_packages() {
  local missing=() pair
  for pair in /usr/bin/node:nodejs /usr/bin/npm:npm /usr/bin/gcc:gcc /usr/bin/g++:g++ /usr/bin/make:make /usr/bin/cmake:cmake \
    /usr/bin/go:golang-go /usr/bin/cargo:cargo /usr/bin/rustc:rustc /usr/bin/javac:default-jdk-headless \
    /usr/share/java/junit4.jar:junit4 /usr/share/java/junit-platform-console.jar:junit5 /usr/share/java/hamcrest.jar:libhamcrest-java \
    /usr/include/gtest/gtest.h:libgtest-dev; do
    [ -e "${pair%%:*}" ] || missing+=("${pair##*:}")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    say "installing ${missing[*]}"
    if ! apt_install "${missing[@]}"; then
      say "not installed, so that tasks in their languages cannot be built: ${missing[*]}"
    fi
  else
    say "not here, and needed for code-repair tasks in their languages only: ${missing[*]}"
  fi
}

stamp_of() {
  { cat pyproject.toml constraints.txt scripts/setup.sh; pwd -P; } | git hash-object --stdin
}

# The CPU build by its exact local version: where pip already finds one (find-links, a mirror) nothing else is
# asked; the ordinary index only has CUDA builds for Linux, so no resolver may choose for us.
install_torch() {
  if [ "$(uname -s)" != Linux ]; then
    "$pip" install -qq "torch==$TORCH"
  elif ! "$pip" install -qq "torch==$TORCH+cpu" 2>"$VENV/torch.log"; then
    say "pip knows no torch==$TORCH+cpu; asking $TORCH_CPU_INDEX"
    "$pip" install -qq "torch==$TORCH" --index-url "$TORCH_CPU_INDEX" \
      || stop "no CPU build of torch $TORCH was found; pip said: $(tail -n 2 "$VENV/torch.log")"
  fi
}

# What packages of Python without wheels (jericho, pycosat) are built with: before pip, which the rest of the system's
# packages are installed beside.
compilers() {
  local missing=() tool
  for tool in gcc g++ make; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    say "installing ${missing[*]}"
    apt_install "${missing[@]}" libc6-dev || say "not installed: ${missing[*]}"
  fi
}

all_optional_packages() {
  optional_packages
  desktop_packages
  language_packages
}

system_packages
stamp="$VENV/.envgym-$(stamp_of)"
if [ -e "$stamp" ]; then
  all_optional_packages
  scripts/vllm_env.sh || say "without vLLM: its tests cannot run"
  exit 0
fi
if [ ! -x "$VENV/bin/python" ]; then
  python=$(find_python)
  say "making $VENV with $python"
  "$python" -m venv "$VENV"
fi
compilers
export PIP_DISABLE_PIP_VERSION_CHECK=1
pip=$VENV/bin/pip
# beside the rest: pip computes on one processor, and packages of the system are no package of Python's
all_optional_packages &
packages=$!
scripts/vllm_env.sh &
vllm=$!
trap 'kill "$vllm" 2>/dev/null || true; wait "$packages" || true' EXIT
say "installing torch $TORCH (CPU build)"
install_torch
say "installing envgym with the extras code, data, docker, train, endpoint, cluster, lora, mcp, sql, search, text, watch, web and dev"
"$pip" install -qq -c constraints.txt -e '.[code,data,docker,train,endpoint,cluster,lora,mcp,sql,search,text,watch,web,dev]'
# Its chat templates are test cases; nothing of it is installed.
say "downloading the wheel of trl 1.16.0"
"$pip" download -qq --no-deps -d "$VENV/wheels" trl==1.16.0
# Their losses and advantages are test cases, the last one's vector environment a peer in a benchmark. They lie beside
# the environment (24 MB) with the little that importing them needs: what they depend on would take the place of ours.
say "putting trl 1.16.0, verl 0.9.1 and gem-llm 0.1.0 in $VENV/peers"
"$pip" install -qq --no-deps --upgrade --target "$VENV/peers" "$VENV/wheels/trl-1.16.0-py3-none-any.whl" verl==0.9.1 \
  codetiming==1.4.0 omegaconf==2.4.0 pyvers==0.2.3 tensordict==0.14.3 gem-llm==0.1.0
rm -f "$VENV"/.envgym-*
touch "$stamp"
wait "$packages" || say "some packages of the system are missing"
wait "$vllm" || say "without vLLM: its tests cannot run"
say "done: $VENV"
