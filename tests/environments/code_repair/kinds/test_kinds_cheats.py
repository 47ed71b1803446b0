import pytest
from envgym_environments.code_repair.cheats import CHEATS, IDLE
from envgym_environments.code_repair.env import CodeRepair
from envgym_environments.code_repair.kinds.registry import KINDS
from envgym_environments.code_repair.memo import Memo

from envgym.testing.cheats import audit

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(600), pytest.mark.slow]

SAMPLE = ("reports-passed", "equal-to-all", "tests-emptied")
"""Of the cheats against repairs, a few that need no particular package; the whole matrix is a benchmark."""


@pytest.mark.turns
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_cheat_of_the_sample_and_of_the_kind_gains_anything(kind, made_of_shelf, in_backend) -> None:
    chosen = [cheat for cheat in CHEATS if cheat.family == "kinds" or cheat.name in SAMPLE]

    async def body(backend) -> None:
        (task, *_), _ = await made_of_shelf(backend, kind)
        idle = IDLE.script(task)
        played = [cheat for cheat in chosen if [*cheat.script(task)] != [*idle]]
        assert {cheat.name for cheat in played} >= {*SAMPLE}
        memo = Memo()
        found = await audit([task], lambda one: CodeRepair(one, backend, memo=memo), played, idle=IDLE.script)
        assert not [attempt for attempt in found if attempt.gains or attempt.failed]

    in_backend(body)


def test_compact_tools_are_refused_for_a_kind(made_of_shelf, in_backend) -> None:
    async def body(backend) -> None:
        (task, *_), _ = await made_of_shelf(backend, "class")
        with pytest.raises(ValueError, match="of the kind 'class': use tools='full'"):
            CodeRepair(task, backend, tools="compact")

    in_backend(body)
