"""A wrong configuration is one clear line; nothing is silently ignored."""

import pytest

pytest.importorskip("torch")
from envgym_agents.learn.config import Reinforce, TrainConfig, load


@pytest.mark.parametrize(
    ("critic", "said"),
    [
        ({"lr": 0.5}, "lr 0.5 has no use where critic.kind is 'none'"),
        ({"kind": "turn", "beta": 0.1}, "beta 0.1 has no use where critic.kind is 'turn'"),
        ({"kind": "progress", "loss": "mse"}, "loss 'mse' has no use where critic.kind is 'progress'"),
        ({"kind": "archer", "lam": 0.5}, "lam 0.5 has no use where critic.kind is 'archer'"),
        ({"kind": "implicit", "body": "own"}, "body 'own' has no use where critic.kind is 'implicit'"),
        ({"kind": "reward-model", "gamma": 0.9}, "gamma 0.9 has no use where critic.kind is 'reward-model'"),
        ({"kind": "token", "size": "2M"}, "size '2M' has no use where critic.body is 'policy'"),
        ({"kind": "token", "loss": "mse", "bins": 9}, "bins 9 has no use where critic.loss is 'mse'"),
        (
            {"kind": "turn", "second": {"kind": "implicit", "tau": 0.5}},
            "tau 0.5 has no use where critic.kind is 'im",
        ),
    ],
)
def test_what_a_critic_does_not_read_is_refused(critic, said):
    with pytest.raises(ValueError, match=said):
        Reinforce(critic=critic)


def test_the_scale_of_no_adapters_and_the_size_of_no_evaluations_are_refused():
    with pytest.raises(ValueError, match=r"lora_alpha 8\.0 has no use where model\.lora_rank is 0"):
        load(overrides=["model.lora_alpha=8"])
    with pytest.raises(ValueError, match=r"quick 8 has no use where evaluate\.every is 0"):
        load(overrides=["evaluate.quick=8"])


def test_a_stream_of_demonstrations_needs_an_expert_or_a_store():
    wanted = {"reinforce": {"loss": {"streams": {"demonstrations": 1.0}}}, "model": {"path": "x"}}
    load(base={**wanted, "warm_start": {"episodes_per_task": 0, "store": "x"}})
    with pytest.raises(
        ValueError, match=r"streams\.demonstrations 1 needs what an expert did: raise warm_start\.ep"
    ):
        load(base={**wanted, "warm_start": {"episodes_per_task": 0}})


def test_a_file_and_overrides_are_merged(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('seed = 3\n[reinforce]\nsteps = 7\ntasks = 2\n[env_options]\ntools = "compact"\n')
    config = load(path, ["reinforce.steps=9", "reinforce.minutes=2.5", "env=guess", "env_options.size=4"])
    assert (config.seed, config.env, config.env_options) == (3, "guess", {"tools": "compact", "size": 4})
    assert (config.reinforce.steps, config.reinforce.tasks, config.reinforce.minutes) == (9, 2, 2.5)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("reinforce.group=1", "reinforce.group = 1: Input should be greater than or equal to 2"),
        ("reinforce.grup=4", "reinforce.grup: there is no such field; did you mean 'group'?"),
        ("reinforc.steps=4", "reinforc: there is no such field; did you mean 'reinforce'?"),
        ("step_s=0", "step_s = 0: Input should be greater than 0"),
        ("reinforce.clip_low=1.5", "reinforce.clip_low = 1.5: Input should be less than or equal to 1"),
        ("warm_start.max_updates=10", "max_updates 10 is below min_updates 800"),
        ("reinforce.lr=inf", "reinforce.lr = inf: Input should be a finite number"),
        ("warm_start.lr=inf", "warm_start.lr = inf: Input should be a finite number"),
        ("reinforce=3", "reinforce = 3: reinforce is a section; set its fields, as in reinforce.name=value"),
        (
            "env_options=3",
            "env_options = 3: env_options is a section; set its fields, as in env_options.name=value",
        ),
        ("model.answer=2048", "answer 2048 must be below context 2048"),
        ("threads=100000", "threads = 100000: Input should be less than or equal to 1024"),
        ("model.others.user={agent='a', tols=1}", "user.tols: there is no such field; did you mean 'tools'?"),
        ("nonsense", "is not of the form section.field=value"),
        ("seed.x=1", "'seed' is a value, not a section"),
    ],
)
def test_a_mistake_is_one_line_with_field_value_and_bound(override, said):
    with pytest.raises(ValueError, match=r".") as error:
        load(overrides=[override], base={"seed": 0})
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("seed =")
    with pytest.raises(ValueError, match=r"bad\.toml is not TOML"):
        load(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes('env = "\xe9"'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.toml is not TOML: .*utf-8"):
        load(tmp_path / "latin.toml")


def test_a_section_that_is_a_value_in_one_place_is_refused_or_replaced_by_a_section(tmp_path):
    (tmp_path / "c.toml").write_text("[seed]\nx = 1\n")
    with pytest.raises(ValueError, match=r"^seed = .*integer"):
        load(tmp_path / "c.toml", base={"seed": 0})


def test_sections_stay_small():
    for model in (TrainConfig, Reinforce, *(f.annotation for f in TrainConfig.model_fields.values())):
        assert len(getattr(model, "model_fields", ())) <= 25


def test_a_configuration_survives_json():
    config = load(overrides=["reinforce.steps=3", "evaluate.baselines=['random', 'expert']"])
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
