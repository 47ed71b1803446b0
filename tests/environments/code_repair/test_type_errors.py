import asyncio

import pytest
from envgym_environments.code_repair.env import CodeRepair
from envgym_environments.code_repair.grade import CodeRepairGrader
from envgym_environments.code_repair.memo import Memo
from envgym_environments.code_repair.patch import make_patch
from envgym_environments.code_repair.trials import world_text
from envgym_environments.code_repair.type_errors import new_type_errors

pytestmark = pytest.mark.timeout(300)

FINE = "def double(x: int) -> int:\n    return x * 2\n"
WRONG = 'def double(x: int) -> int:\n    return "a"\n\n\ny: str = double(1)\n'


def added(base, changed) -> int | None:
    return asyncio.run(new_type_errors(base, changed, Memo()))


@pytest.mark.slow
def test_new_type_errors_are_counted_and_no_comment_hides_one() -> None:
    assert added({"a/b.py": FINE}, {"a/b.py": WRONG}) == 2
    assert added({"b.py": WRONG}, {"b.py": FINE}) == -2
    quiet = "# mypy: ignore-errors\n" + WRONG.replace('"a"', '"a"  # type: ignore[return-value]')
    assert added({"b.py": FINE}, {"b.py": quiet}) == 2
    assert added({}, {"b.py": WRONG}) == 2
    assert added({"b.py": WRONG}, {"b.py": None}) == -2


@pytest.mark.slow
def test_no_text_of_a_patch_is_run_or_configures_the_checker(tmp_path) -> None:
    mark = tmp_path / "ran"
    bad = f"open({str(mark)!r}, 'w')\n"
    patch = {"mypy/__main__.py": bad, "mypy/__init__.py": bad, "sitecustomize.py": bad, "plug.py": bad,
             "mypy.ini": "[mypy]\nplugins = plug.py\nignore_errors = True\n", "b.py": WRONG}  # fmt: skip
    found = added({"b.py": FINE}, patch)
    assert not mark.exists()
    assert found is not None
    assert found >= 2


def test_where_there_is_nothing_to_say_the_answer_is_none() -> None:
    assert added({}, {"a.md": "text"}) is None
    assert added({}, {"a.py": "x = 1\n" * 100_000}) is None
    assert added({}, {f"a{n}.py": "" for n in range(30)}) is None
    assert added({}, {"../a.py": "x = 1\n"}) is None
    assert added({}, {"a.py": "def (:\n"}) is None


@pytest.mark.namespaces
@pytest.mark.slow
def test_the_channel_is_there_when_it_is_asked_for(broken, in_backend) -> None:
    async def body(backend) -> None:
        source = world_text(broken.world, "small.py")
        assert source is not None
        patch = make_patch({"small.py": source}, {"small.py": source + '\n\nCOUNT: int = "one"\n'})
        assert "types" not in (await CodeRepairGrader(backend).grade(broken, patch)).channels
        env = CodeRepair(broken, backend, types=True)
        forked = await env.fork()
        for grader in (env.grader, forked.grader):
            assert (await grader.grade(broken, patch)).channels["types"] == 1.0
        assert "types" not in (await env.grader.grade(broken, "no patch")).channels

    in_backend(body)
