import pytest
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.kinds.moves import moved, needs
from envgym_environments.code_repair.kinds.refactoring import holds
from envgym_environments.code_repair.kinds.references import clashes, names_in, renamed
from envgym_environments.code_repair.patch import make_patch

pytestmark = pytest.mark.timeout(300)

HOME = """import re
import os


def f(x):
    return re.sub("a", "b", x)


def g(x):
    return f(x) + str(os)
"""
USER = "from pkg.home import (\n    f,\n    g as h,\n)\nfrom pkg import home\n\nprint(f, h, home.f)\n"


def test_a_name_is_exchanged_where_it_is_a_word_of_its_own() -> None:
    text = '__all__ = ["tidy", "tidy up"]\n\n\ndef tidy(a):  # tidy\n    return tidy(a.tidy) + untidy\n'
    new = renamed(text, "tidy", "clean")
    assert new == '__all__ = ["clean", "tidy up"]\n\n\ndef clean(a):  # tidy\n    return clean(a.clean) + untidy\n'
    assert (names_in(text, "tidy"), names_in(new, "clean"), names_in(new, "tidy")) == (4, 4, 0)


@pytest.mark.parametrize(
    "text", ["def g(f): pass", "f = 1", "h(f=1)", "class A:\n    def f(self): pass", "import f.a", "x.f = 2"]
)
def test_a_name_that_means_something_else_too_is_not_asked_for(text) -> None:
    assert clashes({"home.py": HOME, "other.py": text}, "f", "home.py")
    assert not clashes({"home.py": HOME, "user.py": USER}, "f", "home.py")


def test_a_function_moves_with_what_it_needs_and_is_imported_from_its_new_place() -> None:
    after = moved({"pkg/home.py": HOME, "pkg/user.py": USER}, "pkg/home.py", "f", "pkg/f_code.py", ".")
    assert "import re" in after["pkg/f_code.py"]
    assert "import os" not in after["pkg/f_code.py"]
    assert "from pkg.f_code import f" in after["pkg/home.py"]
    assert "def f" not in after["pkg/home.py"]
    assert after["pkg/user.py"].startswith("from pkg.home import g as h\nfrom pkg.f_code import f\nfrom pkg")
    assert needs(HOME, "g") is None, "it uses another function of its module"


def test_a_file_that_does_not_parse_keeps_no_check() -> None:
    for check in ({"check": "not named", "name": "a"}, {"check": "not defined", "name": "a"}):
        assert holds(check, "x = 1")
        assert not holds(check, "def (")
        assert not holds(check, None)


@pytest.mark.namespaces
@pytest.mark.slow
def test_refactorings_of_a_package_are_certified_solved_and_not_half_rewarded(
    made_of_shelf, keeps_the_contract, in_backend
) -> None:
    async def body(backend) -> None:
        tasks, _ = await made_of_shelf(backend, "refactor", 2)
        assert {task.metadata["place"]["form"] for task in tasks} == {"move", "rename"}
        await keeps_the_contract(backend, tasks, plays=2)
        task = next(one for one in tasks if one.metadata["place"]["form"] == "rename")
        grader = CodeRepairGrader(backend)
        name, home = task.metadata["place"]["name"], task.metadata["place"]["path"]
        source = await _read(backend, task, home)
        half = make_patch({home: source}, {home: renamed(source, name, f"{name}_renamed")})
        alias = make_patch({home: source}, {home: f"{source}\n\n{name}_renamed = {name}\n"})
        for patch in (half, alias):
            grade = await grader.grade(task, patch)
            assert grade.channels["reward"] == 0.0
            assert grade.channels["checks"] < 1.0
        assert (await grader.grade(task, half)).channels["checks"] > 0.0

    in_backend(body)


async def _read(backend, task, path: str) -> str:
    async with await backend.create(task.world) as sandbox:
        return (await sandbox.read(path)).decode()
