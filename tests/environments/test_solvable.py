import pytest
from envgym_environments.solvable import CORRIDOR, DESK, VAULT

from envgym.registry import EnvSpec, make
from envgym.testing.check_env import check_env_sync
from envgym.testing.check_task import check_tasks

SPECS = pytest.mark.parametrize("spec", [CORRIDOR, DESK, VAULT], ids=lambda spec: spec.name)


@SPECS
def test_a_solvable_world_meets_the_environment_contract(spec: EnvSpec):
    check_env_sync(lambda: make(spec, 0), uses_seed=True)


@SPECS
def test_its_tasks_meet_the_task_contract(spec: EnvSpec):
    check_tasks(spec.tasks(20), splits=("train", "heldout"), seeded=spec.seeded)


def test_options_reach_the_world_and_impossible_ones_are_refused():
    env = make(CORRIDOR, CORRIDOR.tasks(1, rooms=2, deadline=5)[0])
    assert env.world.size == 4  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="rooms is 1"):
        CORRIDOR.tasks(1, rooms=1)
    with pytest.raises(TypeError, match="colour"):
        CORRIDOR.tasks(1, colour=1)
