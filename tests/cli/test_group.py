"""Commands by name: help without imports, unknown names with a hint, one line for every known fault."""

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from envgym.errors import SandboxDied
from envgym.limits import Limits
from envgym.registry import names, register, unregister
from envgym.store import StoreReader, is_store


def test_help_lists_every_command_with_a_summary(envgym):
    ran = envgym("--help")
    assert ran.code == 0
    listed = {line.split()[0]: line for line in ran.out.partition("Commands:")[2].splitlines() if line.strip()}
    assert set(listed) >= set(names("commands")) >= {"list", "doctor", "new", "check", "collect", "show", "reap"}
    assert all(len(line.split()) > 3 for line in listed.values()), listed
    assert not [line for line in listed.values() if "console entry" in line]
    assert "Look at, choose from, merge, grade, convert stored episodes." in listed["data"]


def test_help_imports_nothing_heavy_and_no_leaf():
    program = (
        "import json, sys, envgym.cli; code = envgym.cli.run(['--help']);"
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    code, modules = json.loads(done.stderr)
    assert code == 0
    loaded = {name.partition(".")[0] for name in modules}
    assert not loaded & {"torch", "transformers", "pyarrow", "libcst", "starlette"}
    assert not loaded & {"envgym_agents", "envgym_environments", "envgym_sandboxes"}


@pytest.mark.slow
def test_a_list_imports_no_package_of_an_environment():
    """Its descriptions are read where the sources say them, so that it takes a moment."""
    program = (
        "import json, sys, envgym.cli; code = envgym.cli.run(['list']);"
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    code, modules = json.loads(done.stderr)
    assert code == 0
    loaded = {name.partition(".")[0] for name in modules}
    heavy = {"torch", "docker", "libcst", "textarena", "textworld", "reasoning_gym", "playwright", "minari", "PIL"}
    assert not loaded & heavy
    assert not loaded & {"envgym_agents", "envgym_sandboxes"}


def test_a_misspelt_command_gets_the_nearest_one(envgym):
    ran = envgym("colect")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "envgym: unknown command 'colect'; did you mean 'collect'?\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("collect", "gues"), "did you mean 'guess'?"),
        (("collect", "guess", "--agent", "randm"), "did you mean 'random'?"),
        (("check", "namespce"), "did you mean 'namespace'?"),
        (("list", "--jsn"), "--json"),
        (("collect", "guess", "-n", "0"), "greater than or equal to 1"),
        (("collect", "guess", "--env-option", "x"), "--env-option 'x' is not of the form name=value"),
        (("collect", "guess", "--task-option", "coun=3"), "--task-option.coun = 3: there is no such option"),
        (("check", "guess", "--task-option", "coun=3"), "--task-option.coun = 3: there is no such option"),
        (("check", "guess", "--task-option", "count=-1"), "a set cannot have -1 tasks"),
        (("collect", "guess", "--env-option", "foo=1"), "--env-option.foo = 1: there is no such option; known: "),
        (("collect", "guess", "--agent", "lm"), "--agent-option: it needs the option 'model', which is not given"),
        (("collect", "guess", "--split", "tst"), "its splits: heldout, train"),
        (("show", "no-such-file"), "no-such-file"),
        (("new", "Bad_Name"), "kebab-case"),
        (("reap", "--backend", "namespac"), "did you mean 'namespace'?"),
        (("reap", "--root", "no-such-place"), "--root no-such-place: there is no such directory"),
        (("reap", "--backend", "remote", "--root", "."), "backend 'remote' keeps nothing in a directory"),
    ],
)
def test_a_wrong_argument_gets_one_line_that_says_what_and_the_bound(envgym, arguments, said):
    ran = envgym(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert said in ran.err
    assert ran.err.startswith("envgym: ")
    assert ran.err.count("\n") == 1


def _raise(error: BaseException):
    def command() -> None:
        """Fail."""
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("turns is 0;\nit must be at least 1"), 2, "envgym: turns is 0;; it must be at least 1\n"),
        (SandboxDied("the sandbox is gone"), 1, "envgym: the sandbox is gone (--debug shows where)\n"),
        (OSError(28, "No space left", "/a b"), 1, "envgym: /a b: No space left (--debug shows where)\n"),
        (FileNotFoundError(2, "No such file", "/a b"), 2, "envgym: /a b: No such file\n"),
        (FileExistsError("a exists already"), 2, "envgym: a exists already\n"),
        (typer.Abort(), 1, "envgym: aborted\n"),
        (typer.Exit(7), 7, ""),
    ],
)
def test_what_a_command_raises_becomes_a_status_and_a_line(envgym, error, code, line):
    register("commands", "fails", _raise(error))
    try:
        ran = envgym("fails")
        assert (ran.code, ran.err) == (code, line)
    finally:
        unregister("commands", "fails")


def test_a_wrong_field_is_named_with_its_value_and_bound(envgym):
    def command() -> None:
        """Fail."""
        Limits.model_validate({"turns": 0, "trns": 3})

    register("commands", "fails", command)
    try:
        ran = envgym("fails")
    finally:
        unregister("commands", "fails")
    assert ran.code == 2
    assert "turns = 0: Input should be greater than or equal to 1" in ran.err
    assert "there is no field 'trns'" in ran.err


def test_debug_shows_the_traceback_and_a_defect_is_never_hidden(envgym):
    register("commands", "fails", _raise(ValueError("wrong")))
    register("commands", "breaks", _raise(ZeroDivisionError("a defect")))
    try:
        with pytest.raises(ValueError, match="wrong"):
            envgym("fails", "--debug")
        with pytest.raises(ZeroDivisionError):
            envgym("breaks")
    finally:
        unregister("commands", "fails")
        unregister("commands", "breaks")


def _envgym(arguments: str) -> list[str]:
    return ["/bin/sh", "-c", f'exec "{sys.executable}" -c "import envgym.cli; envgym.cli.main()" {arguments}']


@pytest.mark.parametrize("arguments", ["collect guess --agent random -n 2 --json", "list", "list --json"])
def test_a_closed_standard_output_is_one_line(arguments):
    done = subprocess.run(_envgym(f"{arguments} >&-"), stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("envgym: standard output is closed")
    assert done.stderr.count("\n") == 1


def test_an_interrupt_while_the_program_is_imported_is_one_line():
    interrupting = (
        "import runpy, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "runpy.run_module('envgym', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", interrupting], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "envgym: interrupted\n")


@pytest.mark.slow
def test_an_interrupted_collection_says_what_is_kept_and_how_to_go_on(tmp_path):
    out = tmp_path / "episodes"
    command = _envgym(f"collect guess --agent random -n 1000000 --out {out}")
    pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    # tests that run in the background of a script inherit that interrupts are ignored
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, preexec_fn=listening, **pipes) as running:  # this is one thread
        while not out.exists() or not is_store(out) or not len(StoreReader(out)):
            assert running.poll() is None
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=60)[1]
    assert running.returncode == 130
    kept = len(StoreReader(out))
    assert said.splitlines()[-1] == (
        f"envgym: interrupted; {kept} of 1000000 episodes were played, kept in {out}; the same command goes on"
    )


def test_an_interrupted_command_with_a_run_folder_says_how_it_is_resumed(envgym, tmp_path):
    def command(out: Path, resume: bool = False) -> None:
        """Work."""
        del resume
        out.mkdir(exist_ok=True)
        if (out / "config.json").exists():
            raise KeyboardInterrupt
        (out / "config.json").touch()

    register("commands", "works", command)
    register("commands", "stops", _raise(KeyboardInterrupt()))
    try:
        assert envgym("works", str(tmp_path / "run")).code == 0
        ran = envgym("works", str(tmp_path / "run"))
        assert (ran.code, ran.out) == (130, "")
        kept = f"what was done is kept in {tmp_path}/run; go on with the same command and --resume"
        assert ran.err == f"envgym: interrupted; {kept}\n"
        assert envgym("stops").err == "envgym: interrupted\n"
    finally:
        unregister("commands", "works")
        unregister("commands", "stops")
