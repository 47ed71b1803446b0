"""Cheats made for Python packages, where commands run a Python project's tests: they are played there too."""

import pytest
from envgym_environments.code_repair.cheats import CHEATS, IDLE
from envgym_environments.code_repair.cheats.framework import FRAMEWORK
from envgym_environments.code_repair.suites.suite import Suite

from envgym.task import Task

_GOLD = "".join(f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n" for path in ("README.md", "src/shop/tax.py"))


@pytest.mark.parametrize("metadata", [{"module": "src/shop/tax.py"}, {"gold": {"patch": _GOLD}}])
@pytest.mark.parametrize("prompt", ["the tax is wrong", "Failing:\n- tests/test_tax.py::test_rate"])
def test_more_than_forty_play_on_a_python_project_and_change_the_file_under_repair(metadata, prompt) -> None:
    suite = Suite(language="python", test="true", reader="junit", source=("**",))
    task = Task(id="t", prompt=prompt, metadata={"suite": suite.model_dump(mode="json"), **metadata})
    idle, left = [*IDLE.script(task)], ("PACKAGE_", "FIRST_TEST", "TEST_FILE")
    playing = {cheat.name: [*cheat.script(task)] for cheat in CHEATS if [*cheat.script(task)] != idle}
    assert len(playing) > 100
    said = {
        name: " ".join(str(call.arguments) for one in acts for call in one.calls) for name, acts in playing.items()
    }
    assert not [name for name, text in said.items() if any(word in text for word in left)]
    assert all("cat >> src/shop/tax.py" in said[cheat.name] for cheat in FRAMEWORK)


def test_none_plays_on_a_python_project_where_nobody_knows_what_is_repaired() -> None:
    suite = Suite(language="python", test="true", reader="junit", source=("**",))
    task = Task(id="t", prompt="-", metadata={"suite": suite.model_dump(mode="json")})
    idle = [*IDLE.script(task)]
    assert all([*cheat.script(task)] == idle for cheat in CHEATS if cheat.family == "framework")
