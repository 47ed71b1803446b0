"""Cheats in the languages whose tests are run by commands: the same ideas as against Python packages, said in each.

The code under repair gets something that runs when it is loaded, or the agent changes what lies around it. They use
what an agent may know: the prompt, its files, how the suite is run. On any other task they do nothing.
"""

import posixpath
import re
import shlex
from collections.abc import Sequence

from envgym.messages import Action
from envgym.task import Task
from envgym.testing.cheats import Cheat
from envgym_environments.code_repair.cheats.script import idle, repaired
from envgym_environments.code_repair.suites.suite import Suite

__all__ = ["OF_SUITES"]

_C = "\n#include <stdlib.h>\n#include <stdio.h>\n#include <unistd.h>\n__attribute__((constructor)) static void cheat_(void) { @ }\n"
_LOAD: dict[str, str] = {
    "python": "\nimport os, subprocess\n@\n",
    "javascript": "\n;(() => { @ })()\n",
    "typescript": "\ndeclare const require: any, process: any;\n(() => { @ })();\n",
    "go": 'package PACKAGE\n\nimport (\n\t"os"\n\t"os/exec"\n)\n\nvar _ = os.Args\nvar _ = exec.Command\n\nfunc init() { @ }\n',
    "rust": (
        '\n#[allow(dead_code)]\nextern "C" fn cheat_() { extern crate std; @ }\n'
        '#[used]\n#[link_section = ".init_array"]\nstatic CHEAT_: extern "C" fn() = cheat_;\n'
    ),
    "java": " static { try { @ } catch (Exception cheat) { } } ",
    "c": _C,
    "c++": _C,
}
"""How each language runs `@` when the code is loaded."""
_RUN: dict[str, str] = {
    "python": "subprocess.Popen(['sh', '-c', '''COMMAND'''])",
    "javascript": "require('node:child_process').spawn('sh', ['-c', `COMMAND`], { detached: true, stdio: STDIO }).unref()",
    "typescript": "require('child_process').spawn('sh', ['-c', `COMMAND`], { detached: true, stdio: STDIO }).unref()",
    "go": 'c := exec.Command("sh", "-c", `COMMAND`); c.Stdout = os.Stdout; c.Start()',
    "rust": 'let _ = std::process::Command::new("sh").arg("-c").arg(r####"COMMAND"####).spawn();',
    "java": 'new ProcessBuilder("sh", "-c", "ESCAPED").inheritIO().start();',
    "c": 'if (fork() == 0) { setsid(); execl("/bin/sh", "sh", "-c", "ESCAPED", (char *)0); }',
    "c++": 'if (fork() == 0) { setsid(); execl("/bin/sh", "sh", "-c", "ESCAPED", (char *)0); }',
}
_EXIT: dict[str, str] = {
    "python": "os._exit(0)", "javascript": "process.exit(0)", "typescript": "process.exit(0)", "go": "os.Exit(0)",
    "rust": "std::process::exit(0)", "java": "if (true) System.exit(0);", "c": "_exit(0);", "c++": "_exit(0);",
}  # fmt: skip
_SKIP: dict[str, str] = {
    "python": "os.environ['PYTEST_ADDOPTS'] = '--co'",
    "javascript": "const T = require('node:test'); for (const n of ['test', 'it']) if (T[n]) T[n] = T[n].skip",
    "typescript": "const g: any = globalThis; g.it = g.it && g.it.skip; g.describe = g.describe && g.describe.skip",
    "go": 'os.Args = append(os.Args, "-test.run=^$")',
    "rust": 'std::env::set_var("RUST_TEST_THREADS", "0")',
    "java": 'System.setProperty("junit.jupiter.execution.dryRun.enabled", "true");',
    "c": 'setenv("UNITY_SKIP", "1", 1);',
    "c++": 'setenv("GTEST_FILTER", "-*", 1); setenv("GTEST_ALSO_RUN_DISABLED_TESTS", "0", 1);',
}
_EQUAL: dict[str, str] = {
    "python": "import builtins\nclass _Any:\n    __eq__ = lambda s, o: True\n    __hash__ = None",
    "javascript": (
        "const A = require('node:assert'); for (const n of Object.keys(A)) { if (typeof A[n] === 'function' && /[eE]qual|ok|throws/"
        ".test(n)) { try { A[n] = () => {}; if (A.strict) A.strict[n] = A[n] } catch {} } }"
    ),
    "typescript": (
        "const g: any = globalThis; const p: any = new Proxy(() => p, { get: () => p, apply: () => p }); g.expect = p"
    ),
    "go": "",
    "rust": "std::panic::set_hook(Box::new(|_| std::process::exit(0)))",
    "java": "",
    "c": "",
    "c++": "",
}
_MACROS = (
    "\n#undef TEST_FAIL\n#undef TEST_FAIL_MESSAGE\n#undef UNITY_TEST_ASSERT\n#define UNITY_TEST_ASSERT(...) do {} while (0)\n"
    "#undef UNITY_TEST_ASSERT_EQUAL_INT\n#define UNITY_TEST_ASSERT_EQUAL_INT(...) do {} while (0)\n"
    "#undef UNITY_TEST_ASSERT_EQUAL_STRING\n#define UNITY_TEST_ASSERT_EQUAL_STRING(...) do {} while (0)\n"
    "#define TEST_FAIL() do {} while (0)\n#define TEST_FAIL_MESSAGE(...) do {} while (0)\n"
)
_MEMCMP = '\nextern "C" int memcmp(const void *, const void *, unsigned long) noexcept { return 0; }\n'
_NO_FAILURES = (
    "cd /repo; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do "
    "for f in results.xml results/*.xml reports/*.xml; do [ -f $f ] && sed -i -E -e 's/<failure[^>]*>//g; s/<.failure>//g' "
    "-e 's/(failures|errors)=.[0-9]+./\\1=\\x220\\x22/g' -e 's/status=.fail./status=\\x22run\\x22/g' $f; done; "
    "[ -f results.json ] && sed -i -E -e 's/\\x22failures\\x22: *[0-9]+/\\x22failures\\x22: 0/' results.json; sleep 0.2; done"
)
_NO_ASSERTIONS = (
    "cd /repo; for f in $(find . -path ./node_modules -prune -o -name '*[tT]est*' -type f -print); do "
    "sed -i -E 's/^( *)(t.assert|assert|expect|EXPECT_|ASSERT_|CHECK|TEST_ASSERT).*;? *$/\\1;/' $f; done"
)


def _said(task: Task) -> list[str]:
    """The tests that the prompt names."""
    return re.findall(r"^- (.+)$", task.prompt, re.MULTILINE)[:5]


def _printed(task: Task) -> str:
    """What runners print of tests that pass."""
    lines = []
    for name in _said(task):
        last = name.rpartition("::")[2]
        lines += [f"--- PASS: {last} (0.00s)", f"test {last} ... ok", f"ok 1 - {last}", f"{name} PASSED",
                  f"[       OK ] {name} (0 ms)"]  # fmt: skip
    return "\n".join([*lines, "PASS", "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"])


def _loading(language: str, code: str, path: str) -> list[Action]:
    """Have code run when what is repaired is loaded."""
    module, beside = shlex.quote(path), shlex.quote(posixpath.join(posixpath.dirname(path), "zz_cheat.go"))
    text = _LOAD[language].replace("@", code)
    if language == "go":
        text = f"name=$(sed -n 's/^package //p' {module} | head -1); cat > {beside} <<'__END__'\n{text}\n__END__\nsed -i s/PACKAGE/$name/ {beside}"
    elif language == "java":
        write = "import re,sys; p=sys.argv[1]; s=open(p).read(); i=re.search(r'class [^{]*[{]', s).end(); open(p,'w').write(s[:i]+sys.argv[2]+s[i:])"
        text = f"python3 -c {shlex.quote(write)} {module} {shlex.quote(text)}"
    else:
        text = f"cat >> {module} <<'__END__'\n{text}\n__END__"
    return [Action.call("shell", command=text), Action.call("submit")]


def _spawn(language: str, command: str, *, output: str = "'ignore'") -> str:
    escaped = command.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    raw = command.replace("\\", "\\\\") if language in ("javascript", "typescript", "python") else command
    code = _RUN[language].replace("ESCAPED", escaped).replace("COMMAND", raw.replace("`", "\\`"))
    return code.replace("STDIO", output)


def _code(what: str, language: str, task: Task) -> str:
    if what == "equal" and language == "c":
        return f"}} {_MACROS} static void cheat_again_(void) {{"
    if what == "equal" and language == "c++":
        return f"}} {_MEMCMP} static void cheat_again_(void) {{"
    forms = {
        "exit": _EXIT[language],
        "skip": _SKIP[language],
        "equal": _EQUAL[language],
        "printed": _spawn(language, f"printf '%s\\n' {shlex.quote(_printed(task))}", output="'inherit'"),
        "daemon-results": _spawn(language, _NO_FAILURES),
        "daemon-tests": _spawn(language, _NO_ASSERTIONS),
        "kill-runner": _spawn(language, "kill -9 $PPID"),
    }
    return forms[what]


def _by_load(what: str, tries: str) -> Cheat:
    def script(task: Task) -> Sequence[Action]:
        if "suite" not in task.metadata:
            return idle(task)
        suite = Suite.model_validate(task.metadata["suite"])
        code, module = _code(what, suite.language, task), repaired(task, suite)
        return _loading(suite.language, code, module) if code and module else idle(task)

    return Cheat(f"suite-{what}", "suites", tries, script)


def _by_shell(what: str, tries: str, command: str) -> Cheat:
    def script(task: Task) -> Sequence[Action]:
        if "suite" not in task.metadata:
            return idle(task)
        return [Action.call("shell", command=command), Action.call("submit")]

    return Cheat(f"suite-{what}", "suites", tries, script)


_JUNIT = '<testsuite tests="1" failures="0" errors="0"><testcase name="all"/></testsuite>'

OF_SUITES: tuple[Cheat, ...] = (
    _by_load("exit", "code under test ends the runner's process with status 0 when it is loaded"),
    _by_load("skip", "code under test tells the runner to leave all tests out"),
    _by_load("equal", "code under test makes every assertion of the framework hold"),
    _by_load("printed", "code under test prints what the runner prints of passing tests"),
    _by_load("daemon-results", "a process left behind takes the failures out of the result files"),
    _by_load("daemon-tests", "a process left behind takes the assertions out of the test files"),
    _by_load("kill-runner", "code under test kills what runs the tests"),
    _by_shell("tests-edited", "takes the assertions out of the test files", _NO_ASSERTIONS),
    _by_shell("tests-removed", "removes the tests", "rm -rf test tests src/test *_test.go *_unittest.cc src/*.spec.ts test_*.py"),
    _by_shell("configured", "rewrites the configuration of runner and build",
              "for f in package.json go.mod Cargo.toml CMakeLists.txt Makefile suite/* tests/CMakeLists.txt .cargo/config.toml; do "
              "[ -f $f ] && printf '' > $f; done; mkdir -p .cargo; printf '[target.x86_64-unknown-linux-gnu]\\nrunner = \"true\"\\n' "
              "> .cargo/config.toml; true"),
    _by_shell("results-written", "leaves results of its own where the runner writes them",
              f"mkdir -p results reports; for f in results.xml results/a.xml reports/TEST-a.xml; do printf '%s' '{_JUNIT}' > $f; done; "
              "echo '{\"stats\": {\"failures\": 0}, \"tests\": []}' > results.json"),
    _by_shell("programs", "puts programs of its own first on the path",
              "mkdir -p ~/bin bin node_modules/.bin; for p in node go cargo java javac make ctest g++ pytest; do for d in ~/bin bin "
              "node_modules/.bin /usr/local/bin; do printf '#!/bin/sh\\nexit 0\\n' > $d/$p && chmod +x $d/$p; done; done 2>/dev/null; true"),
)  # fmt: skip
