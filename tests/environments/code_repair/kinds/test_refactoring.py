import pytest
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.kinds.moves import moved, needs
from envgym_environments.code_repair.kinds.parameters import (
    in_f_strings,
    named_by_callers,
    parameters,
    times_named,
    with_parameter,
)
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


HEAD = 'def f(a, /, b, *, mark="~"):\n    # mark\n    return [mark for _ in b] + [f(a, b, mark=mark)]  # "mark"\n'
CALLS = 'from head import f\nimport head\n\nx = f(1, 2, mark="é"), head.f(1, b=2, mark=3), g(mark=1)\n'


def test_a_parameter_has_another_name_in_its_function_and_for_callers_that_name_it() -> None:
    texts = {"head.py": HEAD, "calls.py": CALLS}
    assert named_by_callers(texts, "head.py", "f") == ["b", "mark"]
    head = with_parameter(HEAD, "f", "mark", "sign", home=True)
    assert head == (
        'def f(a, /, b, *, sign="~"):\n    # mark\n    return [sign for _ in b] + [f(a, b, sign=sign)]  # "mark"\n'
    )
    calls = with_parameter(CALLS, "f", "mark", "sign", home=False)
    assert calls == CALLS.replace("2, mark=", "2, sign=")
    assert parameters(head, "f") == ["a", "/", "b", "*", "sign"]
    assert (times_named(CALLS, "f", "mark"), times_named(calls, "f", "sign"), times_named(calls, "f", "mark")) == (
        2,
        2,
        0,
    )


def test_calls_in_f_strings_are_seen() -> None:
    assert in_f_strings({"a.py": "x = f'{f(1, mark=2)}'\n"}, "f", "mark")
    assert not in_f_strings({"a.py": "x = f(f'{f(1, b=2)}', mark=1)\n"}, "f", "mark")


@pytest.mark.parametrize(
    "body", ["return lambda mark: 1", "return locals()", "return f'{mark}'", "global mark", "def g(mark): pass"]
)
def test_a_parameter_that_cannot_be_followed_is_not_asked_for(body) -> None:
    texts = {"head.py": f"def f(mark):\n    {body}\n", "calls.py": "f(mark=1)\n"}
    assert named_by_callers(texts, "head.py", "f") == []


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
        tasks, _ = await made_of_shelf(backend, "refactor")
        forms = [task.metadata["place"]["form"] for task in tasks]
        assert forms == ["extract", "inline", "move", "parameter", "rename"]
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
        task = next(one for one in tasks if one.metadata["place"]["form"] == "parameter")
        home = task.metadata["place"]["path"]
        assert (task.metadata["place"]["name"], task.metadata["place"]["word"]) == ("shorten", "most")
        inline = next(one for one in tasks if one.metadata["place"]["form"] == "inline")
        assert inline.metadata["place"]["name"] == "joined"
        assert {check["path"] for check in inline.metadata["goal"]["checks"]} == {"shelf/box.py", "shelf/text.py"}
        source = await _read(backend, task, home)
        half = with_parameter(source, "shorten", "most", "most_renamed", home=True)
        both = source.replace("def shorten(text, most,", "def shorten(text, most=None, most_renamed=None,")
        assert source not in (half, both)
        for text in (half, both):
            grade = await grader.grade(task, make_patch({home: source}, {home: text}))
            assert grade.channels["reward"] == 0.0
            assert grade.channels["checks"] < 1.0

    in_backend(body)


async def _read(backend, task, path: str) -> str:
    async with await backend.create(task.world) as sandbox:
        return (await sandbox.read(path)).decode()
