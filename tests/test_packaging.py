"""What is shipped: names, types, the wheel's content, and what importing costs in modules."""

import ast
import json
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

import envgym

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"envgym", "envgym_sandboxes", "envgym_environments", "envgym_agents"}

# Public in their modules, and left there: short names that say what they are only together with the module's
KEPT_IN_MODULE = {
    "buffer": {
        "ONLINE", "Added", "Columns", "Counts", "Draw", "Evict", "Lent", "Loss", "QueueState", "ReplayState",
        "Rule", "Schedule", "Span", "Standing", "StartRule", "Status", "Swept", "Why", "across", "classify",
        "combined", "constant", "counted_runs", "dealt", "drawn", "edge", "failures_first", "group_tokens",
        "importance", "join", "joined_runs", "kept_turns", "linear", "oldest_version", "probabilities",
        "recent", "span", "starts_of", "success_rate", "turn_bound", "uniform",
    },
    "browsing": {"Used", "leave_page", "pages_kept", "take_page"},
    "egress": {"Place", "parse_place"},
    "env": {"answered"},
    "episode": {"SPENT", "THOUGHT", "earned"},
    "errors": {"boundary"},
    "function_tool": {"MOST_THREADS"},
    "interpreter": {"CellState"},
    "limits": {"MOST_OUTPUT"},
    "jobs": {"origin_of"},
    "options": {"hint", "wrong_option"},
    "policy": {"ROLES", "Roles", "shared_versions"},
    "registry": {
        "AUTO_ORDER", "Group", "check_backend", "choose_task", "entry_point", "find", "gymnasium_id",
        "names", "own_options", "package_of",
        "reports",
        "spec", "twists", "unregister",
    },
    "page_keys": {"clipboard_use", "read_keys"},
    "page": {"Dialog", "Download", "Folder", "Node", "Site", "Storage", "Tab", "Tcp", "UnixSocket"},
    "page_actions": {
        "Back", "Click", "CloseTab", "Drag", "Fill", "Forward", "Goto", "Hover", "NewTab", "Press", "Scroll",
        "Select", "SwitchTab", "TypeText", "Upload", "Wait",
    },
    "replay": {"as_env", "forked"},
    "rollout": {"took_s", "unplayed"},
    "sandbox": {"is_warm"},
    "screen": {
        "CLOSED", "Acted", "Box", "Button", "Click", "Drag", "Invoke", "Move", "Node", "Press", "Scroll", "SetText",
        "Target", "Type", "Wait", "Window",
    },
    "store": {
        "Answered", "Damage", "Ended", "Graded", "Record", "Said", "TokenBatch", "Tokens", "Turned", "is_store",
    },
    "task": {"checked_world", "evenly"},
    "toolbox": {"Answer", "bounded_text"},
    "tools": {"arguments_model", "read_json_call", "signature"},
}  # fmt: skip


def test_every_public_name_is_there_once_and_is_its_modules_own():
    assert len(envgym.__all__) == len(set(envgym.__all__))
    for name in envgym.__all__:
        thing = getattr(envgym, name)
        module = getattr(thing, "__module__", "")
        if module.startswith("envgym"):
            assert getattr(import_module(module), name) is thing
    assert set(envgym.__all__) <= set(dir(envgym))
    with pytest.raises(AttributeError, match="no_such_name"):
        envgym.no_such_name  # noqa: B018


def test_all_is_complete():
    exported = set(envgym.__all__)
    for module, names in envgym._MODULES.items():
        public = set(import_module(f"envgym.{module}").__all__)
        kept = KEPT_IN_MODULE.get(module, set())
        assert set(names) <= public, f"envgym.{module} does not name {set(names) - public} in its __all__"
        assert public - set(names) - kept == set(), (
            f"neither exported nor listed here: {public - set(names) - kept}"
        )
        exported -= set(names)
    assert exported == set()


def test_the_stub_types_exactly_the_public_names():
    tree = ast.parse((ROOT / "envgym/__init__.pyi").read_text())
    imports = {
        (node.module, alias.asname)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imports == {(home, name) for name, home in envgym._HOME.items()}
    listed = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    assert listed == envgym.__all__


def _modules_after(program: str) -> set[str]:
    code = f"import sys, json; {program}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


def test_importing_envgym_imports_no_library_and_touching_a_name_only_what_it_needs():
    assert not _modules_after("import envgym") & {"numpy", "pydantic", "gymnasium", "pyarrow", "torch", "asyncio"}
    every = _modules_after("from envgym import *")
    assert {"numpy", "pydantic", "envgym.rollout"} <= every
    assert not every & {"torch", "transformers", "gymnasium", "docker", "rich", "typer", "libcst"}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout, built here and now with what is installed."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
@pytest.mark.slow
def test_the_wheels_top_level_names_are_exactly_the_four_packages(wheel):
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    names = {top for top in tops if not top.endswith((".dist-info", ".data", ".pth"))}
    assert names == PACKAGES
    hooks = {top for top in tops if top.endswith(".pth")}
    assert hooks <= {"envgym_gymnasium.pth"}, "site files run at every start: one, known, and with a reason"


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_data_file_and_nothing_else(wheel):
    inside = {name for name in wheel.namelist() if name.partition("/")[0] in PACKAGES}
    roots = {"envgym": ROOT, "envgym_sandboxes": ROOT / "sandboxes", "envgym_environments": ROOT / "environments"}
    roots["envgym_agents"] = ROOT / "agents"
    expected = set()
    for package, root in roots.items():
        for path in (root / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                expected.add(path.relative_to(root).as_posix())
    expected.add("envgym_sandboxes/images/images.toml")  # containers/images.toml, which is no package's
    assert inside == expected
    assert all(f"{package}/py.typed" in inside for package in PACKAGES)


@pytest.mark.slow
def test_the_wheel_declares_what_the_project_declares(wheel):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (name,) = (name for name in wheel.namelist() if name.endswith("dist-info/entry_points.txt"))
    text = wheel.read(name).decode()
    for group, entries in project["entry-points"].items():
        assert f"[{group}]" in text
        assert all(f"{key} = {value}" in text for key, value in entries.items())
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


@pytest.mark.slow
def test_every_entry_point_of_ours_can_be_loaded():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group, entries in project["entry-points"].items():
        for name, value in entries.items():
            module, _, attribute = value.partition("[")[0].strip().partition(":")
            assert hasattr(import_module(module), attribute), f"{group}: {name} = {value}"
