"""A whole training run, stage by stage: expert, student, warm start, evaluation, RL, evaluation, report.

Every stage leaves its result in the run folder and is skipped when it is found there; the two long ones also go
on from their own checkpoints. So a run that was killed at any point is resumed with the same command.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from envgym.browsing import pages_kept
from envgym.env import Env
from envgym.episode import Episode
from envgym.policy import AgentFactory
from envgym.progress import Bar
from envgym.registry import spec
from envgym.run_backend import run_backend, swept
from envgym.store import StoreWriter
from envgym.task import Task
from envgym_agents.learn.again import going_on
from envgym_agents.learn.cluster.elsewhere import elsewhere
from envgym_agents.learn.cluster.places import Places
from envgym_agents.learn.collect import Collected
from envgym_agents.learn.config import TrainConfig
from envgym_agents.learn.crew import Crew, crew_size, launched
from envgym_agents.learn.curriculum import order_of
from envgym_agents.learn.evaluate import Evaluation, evaluation, succeeded
from envgym_agents.learn.folder import TRAJECTORIES, RunFolder, check_begun, names_of
from envgym_agents.learn.identity import claim, compared
from envgym_agents.learn.learns import Learns
from envgym_agents.learn.overlap import Overlapped
from envgym_agents.learn.pack import Row, rows_of
from envgym_agents.learn.parts import Parts, Progress
from envgym_agents.learn.past import past_groups, whole_episodes
from envgym_agents.learn.play import Arena, arena_of, seed_of
from envgym_agents.learn.reinforce import Loop
from envgym_agents.learn.report import AFTER, BEFORE, GREEDY, Metrics, write_comparison, write_report
from envgym_agents.learn.resolve import Resolved, check_student, hub_names, located, resolve, try_agents
from envgym_agents.learn.scoring import scorer_of
from envgym_agents.learn.sharded import Processes, ShardedLearner
from envgym_agents.learn.staleness import staleness_of, told_of
from envgym_agents.learn.student import Student, load_student, new_student
from envgym_agents.learn.teacher import Teacher, check_teacher, served_teacher
from envgym_agents.learn.update import Learner, adamw
from envgym_agents.learn.values.fresh import Resampler
from envgym_agents.learn.values.several import valued
from envgym_agents.learn.warm_start import Imitation, imitate, split_tasks
from envgym_agents.learn.watch import Stops, Unmet, writers
from envgym_agents.learn.worker import Begin
from envgym_agents.model import load_model, parameters
from envgym_agents.policies.transformer import TransformerPolicy

__all__ = ["Run", "evaluate_folders", "opened", "train"]

_PAGES = 24
"""The least number of pages that wait: as groups of several kinds take turns, each finds one of its own kind."""


@dataclass(slots=True)
class Run:
    """One run's parts; each stage is a method that does its work once per folder."""

    config: TrainConfig
    folder: RunFolder
    named: Resolved
    arena: Arena
    console: Console | None
    example: Env
    crew: Processes | None = None
    places: Places | None = None
    teacher: Teacher | None = None

    def bar(self, label: str, total: int, *, budget_minutes: float | None = None) -> Bar:
        """A progress bar of this run."""
        budget_s = None if budget_minutes is None else budget_minutes * 60
        return Bar(self.console, label, total, budget_s=budget_s)

    async def play(
        self, label: str, tasks: Sequence[Task], agents: AgentFactory, *, arena: Arena, attempts: int, seed: int
    ) -> list[Episode]:
        """Play tasks in an arena with a bar and store the episodes under `label`."""
        found: list[Episode] = []
        with self.bar(label, len(tasks) * attempts) as bar:

            def count(episode: Episode) -> None:
                found.append(episode)
                bar.update(len(found), f"success {sum(map(succeeded, found)) / len(found):.1%}")

            return await arena.attempts(
                tasks,
                agents,
                seed=seed,
                label=label,
                attempts=attempts,
                on_episode=count,
            )

    async def expert(self) -> list[Episode]:
        """The expert's episodes on the training tasks, or those of a store: those that are to be imitated."""
        warm, name = self.config.warm_start, self.config.expert
        stored = None if warm.store is None else whole_episodes(warm.store)
        if self.folder.done("expert") is None:
            episodes, says = stored, "stored episodes"
            if episodes is None:
                tasks, agents, says = self.named.train_tasks, self.named.agents[name], "expert on training tasks"
                attempts, seed = warm.episodes_per_task, seed_of(self.config.seed, 1)
                episodes = await self.play(
                    "expert", tasks, agents, arena=self.arena.by(name), attempts=attempts, seed=seed
                )
            self.folder.finish("expert", {**self.summary(evaluation(says, episodes)), "clusters": {}})
        found = self.folder.read("expert") if stored is None else stored
        return [one for one in found if (one.failure is None if warm.imitate == "all" else succeeded(one))]

    async def warm_start(self, student: Student, expert: Sequence[Episode]) -> Imitation:
        """Imitate the expert until held-out training tasks stop improving."""
        config = self.config.warm_start
        stored = self.folder.done("warm_start")
        if stored is not None:
            return Imitation.of(stored)
        rows = await self.traced(student, expert)
        stops = Stops(self.config.watch)
        learn, held = split_tasks([row.key for row in rows], config.validation, self.config.seed)
        with self.bar("warm start", config.max_updates, budget_minutes=config.minutes) as bar:

            def show(state: Imitation, loss: float) -> None:
                last = (
                    f", held-out {state.curve[-1].loss:.3f} ({state.curve[-1].accuracy:.1%})" if state.curve else ""
                )
                left_out = f", {state.skipped} updates left out" if state.skipped else ""
                bar.update(state.update, f"loss {loss:.3f}{last}{left_out}")
                stops.look_at_imitation(state.update, state.skipped_in_a_row)

            state = imitate(
                self.learner(student, student.model, lr=config.lr, weight_decay=config.weight_decay),
                [row for row in rows if row.key in learn],
                [row for row in rows if row.key in held],
                config,
                seed=self.config.seed,
                folder=self.folder.path / "checkpoints" / "warm_start",
                on_update=show,
            )
        student.save(self.folder.path / "warm")
        self.folder.finish("warm_start", asdict(state))
        return state

    async def traced(self, student: Student, expert: Sequence[Episode]) -> list[Row]:
        """The rows of the expert's episodes, in the student's tokens."""
        rows = []
        for episode in expert:
            traced = await student.retrace(episode, self.example)
            rows += rows_of(traced, np.ones(traced.sampled_tokens, np.float32))
        return rows

    async def demonstrations(self, student: Student) -> list[Row]:
        """What RL goes on imitating, where its loss has that stream."""
        return await self.traced(student, await self.expert())

    def learner(
        self, student: Student, model: Any, *, lr: float, weight_decay: float, reference: bool = False,
        masks: bool = False, demonstrations: Sequence[Row] = (),
    ) -> Learns:  # fmt: skip
        """A learner of the model, the student's own or a copy of it, with a fresh optimiser.

        reference: with a frozen model: the configured teacher, or what RL begins with. Of several processes, each
        makes its part of the folder that the student was loaded from. masks: with a masking policy that is renewed.
        """
        config, teacher = self.config, self.config.reinforce.loss.distill.teacher
        served = self.teacher if reference else None
        beside = (Path(teacher) if teacher else self.begun_from).absolute() if reference and not served else None
        scorer = scorer_of(config, model, trains=self.crew is None)
        if self.crew is not None:
            begin = Begin(config, self.begun_from.absolute(), lr, weight_decay, beside, demonstrations)
            return ShardedLearner(scorer, self.crew, begin, max_tokens=config.max_tokens, device=config.device)
        frozen = None if beside is None else scorer_of(config, self.loaded(beside), trains=False)
        masking = scorer_of(config, self.loaded(self.begun_from), trains=False) if masks else None
        return Learner(
            scorer, adamw(model, lr=lr, weight_decay=weight_decay), max_tokens=config.max_tokens,
            device=config.device, reference=frozen, teacher=served, demonstrations=demonstrations,
            tokenizer=student.tokenizer, masking=masking,
        )  # fmt: skip

    def loaded(self, folder: Path) -> Any:
        """A model that is asked and not trained."""
        return load_model(folder, device=self.config.device, dtype="float32")[0]

    async def evaluate(
        self, name: str, agents: AgentFactory, tasks: Sequence[Task] | None = None, *, weights: str = ""
    ) -> Evaluation:
        """One agent on the held-out tasks, from the folder if it was played before. weights: its digest."""
        tasks = self.named.test_tasks if tasks is None else tasks
        label = f"evaluate-{name}"
        if self.folder.done(label) is None:
            seed = seed_of(self.config.seed, 2)  # the same for every agent: equal tasks, equal worlds
            arena, attempts = self.arena.by(name, weights=weights), self.config.evaluate.attempts
            await self.play(label, tasks, agents, arena=arena, attempts=attempts, seed=seed)
        clusters = {t.id: str(t.metadata.get(self.config.evaluate.cluster, t.id)) for t in self.named.test_tasks}
        found = evaluation(name, self.folder.read(label), cluster=lambda task: clusters.get(task, task))
        if self.folder.done(label) is None:
            self.folder.finish(
                label, self.summary(found) | {"cluster_of": {o.task: o.cluster for o in found.outcomes}}
            )
        return found

    def summary(self, found: Evaluation) -> dict[str, Any]:
        """An evaluation as plain data, its interval as the configuration asks."""
        return found.summary(seed=self.config.seed, draws=self.config.evaluate.bootstrap)

    async def evaluate_student(self, name: str, student: Student) -> list[Evaluation]:
        """A student as it was loaded on the held-out tasks: as it is sampled, then greedily if that is wanted."""
        wanted, temperature = self.config.evaluate, self.config.evaluate.temperature
        sampling, weights = student.agents(temperature=temperature), student.weights
        found = [await self.evaluate(name, sampling, weights=weights)]
        if wanted.greedy and temperature > 0:
            greedy = student.agents(temperature=0.0)
            found.append(await self.evaluate(name + GREEDY, greedy, weights=weights))
        return found

    async def reinforce(self, student: Student) -> Progress:
        """The policy-gradient loop, with metrics, trajectories and quick evaluations as it goes."""
        config, here = self.config.reinforce, self.places is None
        # who plays while it learns samples from weights of its own
        model = deepcopy(student.model) if here and staleness_of(config) else student.model
        learner = self.learner(
            student, model, lr=config.lr, weight_decay=config.weight_decay,
            reference=config.loss.wants_reference, masks=config.loss.renews_mask,
            demonstrations=await self.demonstrations(student) if config.loss.streams.demonstrations else (),
        )  # fmt: skip
        valuation = valued(
            config.critic, model, seed=self.config.seed, temperature=self.config.model.temperature,
            max_tokens=self.config.max_tokens, device=self.config.device,
        )  # fmt: skip
        if config.loss.mask.top_p < 1 and isinstance(student.policy, TransformerPolicy) and here:
            student.policy.mask(self.loaded(self.begun_from), top_p=config.loss.mask.top_p)
        metrics = Metrics(told := self.folder.path / "metrics.jsonl")
        stops = Stops(self.config.watch, told, Unmet(config))
        if self.console is not None:
            self.console.print(told_of(config), highlight=False)
        watched = writers(self.config.watch, self.folder.path, self.config.model_dump(mode="json"))
        with watched, self.bar("reinforce", config.steps, budget_minutes=config.minutes) as bar:

            async def on_step(progress: Progress, found: Collected, values: dict[str, float]) -> None:
                metrics.append(progress.step, values)
                watched.write(progress.step, values)
                every = self.config.evaluate.every
                if every and progress.step % every == 0:
                    quick = self.named.test_tasks[: self.config.evaluate.quick]
                    agents = student.agents(temperature=self.config.evaluate.temperature)
                    await self.evaluate(f"step-{progress.step:05d}", agents, quick)
                note = f"success {values.get('success', 0.0):.1%}, {values['groups']:.0f} groups"
                note += ", updates left out" if values.get("skipped") else ""
                bar.update(progress.step, note, elapsed_s=values["total_s"])
                stops.look(progress.step, values, found.episodes)

            parts = Parts(
                learner=learner,
                policy=self.places or student.policy,
                make_agent=student.agents(temperature=self.config.model.temperature),
                arena=self.arena.by("student"),
                order=order_of(config.loop.curriculum, self.named.train_tasks, self.config.seed),
                config=config,
                seed=self.config.seed,
                folder=self.folder.path / "checkpoints" / "reinforce",
                on_step=on_step,
                past=await past_groups(
                    config, student, self.example, self.named.train_tasks, seed=self.config.seed
                ),
            )
            beside: dict[str, Any] = {"valuation": valuation, "make_greedy": student.agents(temperature=0.0)}
            if staleness_of(config):
                progress = await Overlapped(parts, **beside).run()
            else:
                progress = await Loop(parts, resampler=Resampler(student.policy, student.sampling), **beside).run()
        student.save(self.folder.path / "trained")
        return progress

    @property
    def begun_from(self) -> Path:
        """The model folder that RL begins with: after the warm start, if there was one."""
        warm = self.folder.path / "warm"
        return warm if warm.exists() else self.folder.path / "student"

    async def student(self) -> Student:
        """The student after its warm start, from the folder if it is there."""
        expert = await self.expert()
        if self.folder.done("student") is None:
            async with new_student(self.config, expert, self.example) as made:
                made.save(self.folder.path / "student")
            self.folder.finish("student", {"parameters": parameters(made.model)})
        if expert and self.config.warm_start.max_updates and self.folder.done("warm_start") is None:
            async with load_student(self.config, self.folder.path / "student") as fresh:
                await self.warm_start(fresh, expert)
        return load_student(self.config, self.begun_from)

    @asynccontextmanager
    async def acting(self, student: Student) -> AsyncIterator[Student]:
        """The student, open, where it plays: in this process, or on every place of the cluster."""
        async with student:
            if self.places is not None:
                await self.places.begin(student)
            yield student

    async def all(self) -> dict[str, Any]:
        """Every stage in order; returns the report."""
        names = self.config.evaluate.baselines
        async with self.acting(await self.student()) as student:
            check_teacher(self.config, student.tokenizer, student.model.config.get_text_config().vocab_size)
            evaluations = [await self.evaluate(name, self.named.agents[name]) for name in names]
            evaluations += await self.evaluate_student(BEFORE, student)
            if self.folder.done("reinforce") is None:
                self.folder.finish("reinforce", asdict(await self.reinforce(student)))
        async with self.acting(load_student(self.config, self.folder.path / "trained")) as student:
            evaluations += await self.evaluate_student(AFTER, student)
        return write_report(self.folder, self.config, evaluations, self.console)


@asynccontextmanager
async def opened(
    config: TrainConfig,
    out: str | Path,
    resume: bool,
    console: Console | None,
    agents: Sequence[tuple[str, str]] = (),
    *,
    learns: bool = False,
    waits: bool = False,
) -> AsyncIterator[Run]:
    """A run with its folder and backend; everything is closed at the end.

    agents: (field, name) of those that will play. learns: with the processes that a learner is divided over. waits:
    for room on a cluster. All that the configuration names is found, and every agent made once, before the folder
    is written: a mistake leaves nothing behind.
    """
    named = resolve(config, agents)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(pages_kept(max(_PAGES, config.concurrency)))
        backend = None
        if spec(config.env).sandbox:
            made = run_backend(config.sandbox, Path(out) / TRAJECTORIES, config.snapshot_every)
            backend = await stack.enter_async_context(made)
        arena = arena_of(config, backend)
        example = arena.make(named.train_tasks[0])
        stack.push_async_callback(example.close)
        await try_agents(named.agents, example, config.model.others)
        check_begun(out, resume=resume)  # a cluster takes its time
        places, far = await stack.enter_async_context(elsewhere(config, learns=learns, waits=waits))
        if places is not None:
            arena = replace(arena, elsewhere=places.elsewhere)
        folder = RunFolder(out, config, resume=resume)
        memory = stack.enter_context(StoreWriter(folder.trajectories))
        await stack.enter_async_context(swept(backend, folder.trajectories, memory))
        crew: Processes | None = far
        if learns and (size := config.learner.processes) > 1:
            how: dict[str, Any] = {"threads": config.threads, "patience_s": config.learner.patience_s}
            crew = stack.enter_context(Crew(size, device=config.device, **how))
        teacher = stack.enter_context(served_teacher(config)) if learns else None
        yield Run(config, folder, named, replace(arena, memory=memory), console, example, crew, places, teacher)


def train(
    config: TrainConfig, out: str | Path, *, resume: bool = False, console: Console | None = None
) -> dict[str, Any]:
    """Run everything and return the report; see `envgym_agents.learn.folder` for what `out` holds afterwards.

    A learner of several processes that loses one goes on from the last checkpoint, `learner.restarts` times.
    console: where progress and tables go, None for nowhere. Raises ValueError for a configuration that cannot be
    run, before anything is started, and SandboxUnavailable when the environment needs a sandbox that does not
    work here.
    """
    asked, config = config, located(config, names_of(out))
    names = hub_names(asked, config)
    check_student(config)
    crew_size(config.learner.processes)

    async def work(again: bool) -> dict[str, Any]:
        async with opened(config, out, resume or again, console, config.players, learns=True, waits=again) as run:
            run.folder.remember(names)
            return await run.all()

    most = 0 if launched() else config.learner.restarts  # those that torchrun has started, only it starts again
    return going_on(lambda again: asyncio.run(work(again)), out, most=most, console=console)


async def evaluate_folders(
    config: TrainConfig,
    out: str | Path,
    *,
    models: Sequence[Path] = (),
    agents: Sequence[str] = (),
    resume: bool = False,
    console: Console | None = None,
) -> dict[str, Any]:
    """Play the held-out tasks with registered agents and model folders, and compare each with the first.

    Every agent meets the same tasks with the same episode seeds. `out` keeps episodes and report.json; a model that
    has changed since they were played is refused.
    """
    asked, config = config, located(config, names_of(out))
    labels = compared(agents, models, config)
    found: list[Evaluation] = []
    async with opened(config, out, resume, console, [("agent", name) for name in agents]) as run:
        run.folder.remember(hub_names(asked, config))
        for label, path in labels.items():
            claim(run.folder, label, path)
        for name in agents:
            found.append(await run.evaluate(name, run.named.agents[name]))
        for label, path in labels.items():
            async with run.acting(load_student(config, path)) as student:
                found += await run.evaluate_student(label, student)
        return write_comparison(run.folder, config, found, console)
