"""What a configuration names, found and checked before anything is played or written.

A mistake is one line with the field, the value and what is known. Nothing of a run is started here.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from envgym.env import Env
from envgym.options import hint, wrong_option
from envgym.others import Other, check_others
from envgym.registry import EnvSpec, find, own_options, spec
from envgym.store import is_store
from envgym.task import Task, TaskSet, evenly
from envgym_agents.hub import folder_of
from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.config_sampler import Sampler
from envgym_agents.learn.past import store_at
from envgym_agents.learn.play import Scripted
from envgym_agents.learn.staleness import staleness_of
from envgym_agents.learn.teacher import check_teacher_sight, check_tokenizers
from envgym_agents.learn.values.valuation import try_scheme
from envgym_agents.model import check_config, check_device, sees, shape_of
from envgym_agents.policies.chosen import opener
from envgym_agents.tokenizer import load_tokenizer
from envgym_agents.weights import check_weights

__all__ = [
    "Resolved", "check_folder", "check_names", "check_sight", "check_sources", "check_student", "hub_names",
    "located", "resolve", "try_agents",
]  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The tasks that train, those that test, and the agents that will play, by name."""

    train_tasks: Sequence[Task]
    test_tasks: Sequence[Task]
    agents: Mapping[str, Scripted]


def located(config: TrainConfig, known: Mapping[str, str] | None = None, *, weights: bool = True) -> TrainConfig:
    """The configuration with folders in the place of hub names, so that a run folder says which copy it began with.

    known: the folder of each name that a run began with (`hub_names`): a name may mean another copy since. weights:
    as `folder_of`. Raises ValueError, with the field, for a name that is not to be had.
    """
    found = config.model_dump()
    for field in _MODELS:
        section, name = _place(found, field)
        if given := section[name]:
            section[name] = str(_named(field, given, partial(_folder, given, known or {}, weights)))
    return TrainConfig.model_validate(found)


def hub_names(config: TrainConfig, found: TrainConfig) -> dict[str, str]:
    """Of each hub name in a configuration the folder that `located` has found."""
    before, after = config.model_dump(), found.model_dump()
    pairs = [(part[0][part[1]], other[0][other[1]])
             for field in _MODELS for part, other in [(_place(before, field), _place(after, field))]]  # fmt: skip
    return {name: folder for name, folder in pairs if name and name != folder}


_MODELS = ("model.path", "model.tokenizer", "reinforce.loss.distill.teacher")


def _place(values: dict[str, Any], field: str) -> tuple[dict[str, Any], str]:
    *sections, name = field.split(".")
    for section in sections:
        values = values[section]
    return values, name


def _folder(name: str, known: Mapping[str, str], weights: bool) -> Path:
    """The folder that a name is known to mean; where that is gone from the cache, its commit is asked for."""
    if name not in known:
        return folder_of(name, weights=weights)
    folder = Path(known[name])
    return folder if folder.exists() else folder_of(f"{name.partition('@')[0]}@{folder.name}", weights=weights)


def resolve(config: TrainConfig, agents: Iterable[tuple[str, str]]) -> Resolved:
    """Find what a configuration names.

    agents: (field, name) of every agent that will play; the expert has the options `agent_options`, any other
    none. Raises ValueError, one line, for an unknown environment, split, agent, option or device, and for an option
    that is needed and not given; what can be known without a task comes first.
    """
    found, chosen = _registered(config, agents)
    check_device(config.device)
    check_sources(config)
    if config.sampler.kind == "vllm":
        _named("sampler.kind", "vllm", lambda: opener(config.sampler))
    elif config.reinforce.loss.served:
        _named("reinforce.loss.distill.by", "vllm", lambda: opener(Sampler(kind="vllm")))
    tasks = _tasks(found, config)
    _check_splits(config, tasks, within_s=math.inf)
    train = _listed(config, tasks.split(config.split))
    return Resolved(train, evenly(tasks.split(config.evaluate.split), config.evaluate.tasks), chosen)


def check_names(config: TrainConfig, *, within_s: float = 3.0) -> list[str]:
    """Look up what a training run's configuration names, making as few tasks as may be; what could not be said.

    Raises ValueError as `resolve`, but for models, stores, engines and the device, which need not be here. A
    split's name is looked for among tasks where these tell it; no further one is made after `within_s` seconds.
    """
    found, _agents = _registered(config, config.players)
    if isinstance(config.tasks, str):
        _ids(config.tasks)
    try:
        tasks = _tasks(found, config)
    except FileNotFoundError as error:  # built later: nothing else is wrong with it
        return [f"the splits were not looked up: {error}"]
    return _check_splits(config, tasks, within_s=within_s)


def _registered(config: TrainConfig, agents: Iterable[tuple[str, str]]) -> tuple[EnvSpec, dict[str, Scripted]]:
    """The environment and the agents that a configuration names; every name and option but splits is looked at."""
    found = _named("env", config.env, lambda: spec(config.env))
    own = own_options({**found.defaults, **config.env_options})
    _check_options("env_options", own, found.make, given={"backend"}, skip=1)
    _check_options("task_options", config.task_options, found.tasks)
    if found.sandbox and config.sandbox != "auto":
        _named("sandbox", config.sandbox, lambda: find("sandboxes", config.sandbox))
    check_others(config.model.others, "model.others")
    expert = _agent("expert", config.expert)
    _check_options("agent_options", config.agent_options, expert, given={"seed", "tools"}, skip=1)
    chosen: dict[str, Scripted] = {}
    for field, name in agents:
        make = _agent(field, name)
        options = config.agent_options if name == config.expert else {}
        _check_options(f"{field} = {name!r}", options, make, given={"seed", "tools"}, skip=1)
        chosen[name] = Scripted(make, options)
    _named("reinforce.credit", config.reinforce.credit, lambda: _check_credit(config))
    staleness_of(config.reinforce)
    return found, chosen


def _check_credit(config: TrainConfig) -> None:
    """Raise ValueError when the credit scheme that a configuration names cannot be made with its options."""
    try:
        try_scheme(config.reinforce)
    except TypeError as error:
        raise ValueError(f"with credit_options {config.reinforce.credit_options}: {error}") from error
    if config.reinforce.critic.body == "own":
        _named(
            "reinforce.critic.size", config.reinforce.critic.size, lambda: shape_of(config.reinforce.critic.size)
        )


async def try_agents(agents: Mapping[str, Scripted], env: Env, others: Mapping[str, Other]) -> None:
    """Make every agent once, and close it. Raises ValueError for options that one of them refuses."""
    for actor, one in others.items():
        try:
            player = one.make(env, seed=0)
        except (TypeError, ValueError) as error:
            raise ValueError(f"model.others {actor} = {one.agent!r} with {one.options}: {error}") from error
        await player.close()
    for name, agent in agents.items():
        try:
            made = agent.for_env(env, seed=0)
        except (TypeError, ValueError) as error:
            raise ValueError(f"agent {name!r} with agent_options {agent.options}: {error}") from error
        await made.close()


def check_student(config: TrainConfig, *, weights: bool = True) -> None:
    """Raise ValueError when the student that a configuration names cannot be made. weights: as `check_folder`."""
    model, store = config.model, config.warm_start.store
    if store is not None and not is_store(Path(store)):
        raise ValueError(f"warm_start.store = {store!r}: this is no store of episodes")
    if model.path is not None:
        check_folder("model.path", model.path, weights=weights)
        check_sight("model.path", model.path, config, learns=True)
        return
    _named("model.size", model.size, lambda: shape_of(model.size))
    if model.tokenizer is not None:
        _named("model.tokenizer", model.tokenizer, lambda: load_tokenizer(model.tokenizer or ""))
        return
    if config.warm_start.store is None and not config.warm_start.episodes_per_task:
        raise ValueError(
            "warm_start.episodes_per_task = 0: a fresh model needs the expert's episodes for its tokenizer; raise "
            "it, or give a model folder (model.path)"
        )


def check_sources(config: TrainConfig, *, weights: bool = True) -> None:
    """Raise ValueError when what RL learns from beside its own episodes is not there: a teacher, a store.

    weights: as `check_folder`.
    """
    past, loss = config.reinforce.loop.past, config.reinforce.loss
    if past.kind != "none":
        store_at(past.path)
    if loss.kind == "distill":
        check_folder("reinforce.loss.distill.teacher", loss.distill.teacher, weights=weights)
        check_teacher_sight(config)
        own = config.model.path or config.model.tokenizer
        if own is not None:  # a tokenizer that is trained is compared when it is there
            check_tokenizers(load_tokenizer(own), load_tokenizer(loss.distill.teacher), loss.distill.teacher)


def check_folder(field: str, path: str | Path, *, weights: bool = True) -> None:
    """Raise ValueError when there is no model folder at `path` that can be read. weights: if they must be there."""
    if not (Path(path) / "config.json").is_file():
        raise ValueError(f"{field} = {str(path)!r}: this is no model folder, there is no config.json in it")
    _named(field, str(path), lambda: check_config(path))
    if weights:
        _named(field, str(path), lambda: check_weights(path))


def check_sight(field: str, path: str | Path, config: TrainConfig, *, learns: bool = False) -> None:
    """Raise ValueError where the model of a folder sees, and what the configuration asks for is for text only.

    learns: what learns beside the model counts too, not only who samples.
    """
    if not sees(path):
        return
    workers, sampler, critic = config.cluster.workers, config.sampler.kind, config.reinforce.critic.kind
    for asked, why in (
        (workers > 0, f"cluster.workers is {workers}: workers of a cluster make models of text only; make it 0"),
        (sampler == "vllm", "sampler.kind is 'vllm', which gives it no images; make it 'transformers'"),
        (learns and critic != "none", f"reinforce.critic.kind is {critic!r}: critics read text; make it 'none'"),
    ):
        if asked:
            raise ValueError(f"{field} = {str(path)!r}: this model sees, and {why}")


def _named(field: str, value: str, look_up: Callable[[], T]) -> T:
    try:
        return look_up()
    except ValueError as error:
        raise ValueError(f"{field} = {value!r}: {error}") from None


def _agent(field: str, name: str) -> Callable[..., Any]:
    make: Callable[..., Any] = _named(field, name, lambda: find("agents", name))
    return make


def _tasks(found: EnvSpec, config: TrainConfig) -> TaskSet:
    tasks = found.tasks(**config.task_options)
    if tasks.infinite:
        raise ValueError(f"env = {config.env!r}: its tasks never end; training draws from a finite set")
    return tasks


def _check_splits(config: TrainConfig, tasks: TaskSet, *, within_s: float) -> list[str]:
    """Raise ValueError for a split that no task is of; a line for each that was not met within the time.

    A task is made only where its place does not tell its split, and none behind the last that is looked for.
    """
    wanted = {"split": config.split, "evaluate.split": config.evaluate.split}
    met: set[str] = set()
    looked, until = 0, time.monotonic() + within_s
    while looked < len(tasks) and not met.issuperset(wanted.values()) and time.monotonic() < until:
        met.add(tasks.split_at(looked))
        looked += 1
    missing = {field: name for field, name in wanted.items() if name not in met}
    if missing and looked == len(tasks):
        field, name = next(iter(missing.items()))
        raise ValueError(
            f"{field} = {name!r}: environment {config.env!r} has no tasks in its split {name!r}; "
            f"{hint(name, sorted(met))}"
        )
    return [
        f"{field} = {name!r} is of none of the first {looked} of {len(tasks)} tasks ({', '.join(sorted(met))}); "
        "the run looks at all of them"
        for field, name in missing.items()
    ]


def _listed(config: TrainConfig, tasks: TaskSet) -> Sequence[Task]:
    """The tasks that train: so many, or those of a file in the order of the split, or all."""
    if not isinstance(config.tasks, str):
        return evenly(tasks, config.tasks)
    wanted = _ids(config.tasks)
    unknown = sorted(wanted - {task.id for task in tasks})
    if unknown:
        what = f"{unknown[0]!r} is no task of split {config.split!r}"
        raise ValueError(f"tasks = {config.tasks!r}: {what} ({len(unknown)} of {len(wanted)} are unknown)")
    return [task for task in tasks if task.id in wanted]


def _ids(path: str) -> set[str]:
    """The task ids of a file, one a line."""
    try:
        names = Path(path).read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"tasks = {path!r}: it cannot be read: {error}") from error
    wanted = {name.strip() for name in names if name.strip()}
    if not wanted:
        raise ValueError(f"tasks = {path!r}: it names no task")
    return wanted


def _check_options(where: str, options: Mapping[str, Any], make: Callable[..., Any], **known: Any) -> None:
    if (wrong := wrong_option(where, options, make, **known)) is not None:
        raise ValueError(wrong)
