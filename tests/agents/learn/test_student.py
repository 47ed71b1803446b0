"""A fresh student's tokenizer is made of what its contexts hold, as often as they hold it."""

from dataclasses import replace

import numpy as np
import pytest

from envgym.env import Step
from envgym.messages import Message, text_of
from envgym.registry import make

torch = pytest.importorskip("torch")
from envgym_agents.chat import tools_message  # noqa: E402
from envgym_agents.learn.config import TrainConfig  # noqa: E402
from envgym_agents.learn.student import new_student  # noqa: E402


def test_descriptions_of_tools_are_read_in_every_episode_so_they_take_few_tokens(turn, episode):
    rng = np.random.default_rng(0)
    letters = list("abcdefgh ")
    episodes = []
    for number in range(60):
        shown = Message(role="user", content="".join(rng.choice(letters, 600)))
        made = episode(f"e{number}", [turn([1], [2], position=0)])
        episodes.append(replace(made, root=Step(observation=(shown,))))
    config = TrainConfig.model_validate({"env": "sql", "model": {"size": "tiny", "vocabulary": 700}})
    env = make("sql", 0)
    told = text_of(tools_message(env.tools))
    ids = new_student(config, episodes, env).template.encode(told)
    assert len(ids) < len(told) / 4
