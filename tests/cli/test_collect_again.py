"""`envgym collect` called again: after a mistake was mended, with what failed, with other options, in groups."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgym.cli.plan import Plan
from envgym.cli.stored import check_store
from envgym.env import Step
from envgym.episode import Began
from envgym.errors import AgentFailure, Misconfigured
from envgym.limits import Limits
from envgym.policy import Reply
from envgym.provenance import bound_by, telling
from envgym.registry import register, unregister
from envgym.store import StoreReader, StoreWriter
from envgym.testing.fakes import RandomAgent

COUNT = 12
WORLD: dict[str, Any] = {}
"""What the agent meets: `raises` of (task id, turn of the whole run) says what an answer raises."""


class Meeting(RandomAgent):
    """A random agent that meets what the test says, and counts what it was asked."""

    def __init__(self, tools: Any, *, seed: int, task: str) -> None:
        super().__init__(tools, seed=seed)
        self._task = task

    async def act(self, step: Step) -> Reply:
        await asyncio.sleep(0)
        WORLD["asked"] += 1
        if (error := WORLD["raises"](self._task, WORLD["asked"])) is not None:
            raise error
        reply = await super().act(step)
        return Reply(reply.action, cost={"usd": 0.01})


@pytest.fixture
def meeting() -> Iterator[dict[str, Any]]:
    def telling_nothing(**_options: object) -> dict[str, str]:
        return {}

    @telling(telling_nothing, free=("address", "price"))
    def maker(
        task: Any, *, seed: int, tools: Any = (), address: str = "", price: float = 0.0, heat: float = 1.0
    ) -> Meeting:
        """An agent behind an address."""
        return Meeting(tools, seed=seed, task=task.id)

    register("agents", "meeting", maker)
    WORLD.update(asked=0, raises=lambda task, asked: None)
    yield WORLD
    unregister("agents", "meeting")


Envgym = Callable[..., Any]


def collected(envgym: Envgym, out: Path, *more: str, count: int = COUNT) -> Any:
    options = ("--agent", "meeting", "-n", str(count), "--turns", "4", "--concurrency", "3", "--out", str(out))
    return envgym("collect", "guess", *options, *more)


def found(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    told: dict[str, Any] = json.loads(ran.out)
    return told


# -- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 5, 20])
def test_a_fault_of_the_configuration_stops_it_stores_no_episode_and_the_same_command_goes_on(
    envgym: Envgym, meeting: dict[str, Any], tmp_path: Path, after: int
) -> None:
    assert collected(envgym, tmp_path / "whole").code == 0
    meeting.update(asked=0, raises=lambda task, asked: Misconfigured("401: no key") if asked > after else None)
    out = tmp_path / "store"
    ran = collected(envgym, out)
    assert (ran.code, ran.out) == (2, "")
    with StoreReader(out) as reader:
        kept = len(reader)
        assert reader.unfinished
        assert not any(episode.failure for episode in reader)
    last = f"envgym: 401: no key ({kept} of {COUNT} episodes were played, kept in {out}; the same command goes on)"
    assert ran.err.splitlines()[-1] == last
    assert collected(envgym, out).code == 2, "it was not mended"
    meeting["raises"] = lambda task, asked: None
    assert found(collected(envgym, out, "--json"))["failed"] == 0
    assert {one.id: one for one in StoreReader(out)} == {one.id: one for one in StoreReader(tmp_path / "whole")}


def test_a_refused_collection_leaves_no_store_where_none_was(
    envgym: Envgym, meeting: dict[str, Any], tmp_path: Path
) -> None:
    def refusing(task: object, *, seed: int) -> RandomAgent:
        raise ValueError("no such key")

    register("agents", "refusing", refusing)
    try:
        ran = envgym("collect", "guess", "--agent", "refusing", "--out", str(tmp_path / "none"))
        assert (ran.code, "no such key" in ran.err, (tmp_path / "none").exists()) == (2, True, False)
        out = tmp_path / "store"
        with StoreWriter(out):
            pass
        assert envgym("collect", "guess", "--agent", "refusing", "--out", str(out)).code == 2
        assert out.exists(), "it was there before"
    finally:
        unregister("agents", "refusing")


# -- what failed -------------------------------------------------------------------------------------------------


def test_what_failed_is_played_again_when_that_is_asked_for_and_stays_stored(
    envgym: Envgym, meeting: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "store"
    bad = ("guess/1", "guess/7")
    meeting["raises"] = lambda task, asked: AgentFailure("gone") if task in bad else None
    first = found(collected(envgym, out, "--json"))
    assert (first["episodes"], first["failed"]) == (COUNT, 2)
    assert "the same command with --retry-failed plays those that failed again" in collected(envgym, out).out
    asked = meeting["asked"]
    assert found(collected(envgym, out, "--json"))["failed"] == 2
    assert meeting["asked"] == asked, "without the option nothing is played again"
    bad = ("guess/7",)
    assert found(collected(envgym, out, "--json", "--retry-failed"))["failed"] == 1
    bad = ()
    whole = found(collected(envgym, out, "--json", "--retry-failed"))
    assert (whole["episodes"], whole["of"], whole["failed"]) == (COUNT, COUNT, 0)
    again = found(collected(envgym, out, "--json", "--retry-failed"))
    assert (again["episodes"], again["failed"]) == (COUNT, 0)
    assert found(collected(envgym, out, "--json"))["failed"] == 0, "the last try counts"
    with StoreReader(out) as reader:
        tries = Counter(name.partition(".")[0] for name in reader.ids)
        assert [name for name in reader.ids if ".try3" in name] == ["guess-s0-000007.try3"]
        assert {name: count for name, count in tries.items() if count > 1} == {
            "guess-s0-000001": 2,
            "guess-s0-000007": 3,
        }
        seeds = {episode.seed for episode in reader if episode.id.startswith("guess-s0-000007")}
        assert (len(tries), len(seeds)) == (COUNT, 1)


def test_a_further_try_that_was_cut_off_goes_on(envgym: Envgym, meeting: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "store"
    meeting["raises"] = lambda task, asked: AgentFailure("gone") if task == "guess/2" else None
    assert found(collected(envgym, out, "--json"))["failed"] == 1
    meeting["raises"] = lambda task, asked: Misconfigured("401") if task == "guess/2" else None
    assert collected(envgym, out, "--retry-failed").code == 2
    assert list(StoreReader(out).unfinished) == ["guess-s0-000002.try2"]
    meeting["raises"] = lambda task, asked: None
    for more in ((), ("--retry-failed",)):
        assert found(collected(envgym, out, "--json", *more))["failed"] == 0
        assert (len(StoreReader(out)), len(StoreReader(out).unfinished)) == (COUNT + 1, 0)


def test_playing_again_what_failed_needs_a_store(envgym: Envgym) -> None:
    ran = envgym("collect", "guess", "-n", "2", "--retry-failed")
    assert (ran.code, "--retry-failed without --out" in ran.err) == (2, True)


# -- other options -----------------------------------------------------------------------------------------------


def test_options_that_the_agent_calls_free_may_change_and_no_others(
    envgym: Envgym, meeting: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "store"
    given = ("--agent-option", "heat=0.5", "--agent-option")
    assert collected(envgym, out, *given, "address=here", count=3).code == 0
    assert collected(envgym, out, *given, "address=there", "--agent-option", "price=2").code == 0
    assert collected(envgym, out, *given[:2]).code == 0
    ran = collected(envgym, out, "--agent-option", "heat=0.6")
    assert (ran.code, 'agent options was {"heat": 0.5}, now it is {"heat": 0.6}' in ran.err) == (2, True)
    ran = collected(envgym, out, "--agent-option", "address=there")
    assert (ran.code, 'agent options was {"heat": 0.5}, now it is not given' in ran.err) == (2, True)
    with StoreReader(out) as reader:
        told = Counter(json.loads(dict(one.provenance)["agent options"])["address"] for one in reader)
    assert told == {"here": 3, "there": COUNT - 3}, "every episode tells what it was played with"


def test_a_free_option_that_there_is_not_is_the_programmers_mistake() -> None:
    def maker(task: object, *, seed: int, heat: float = 1.0) -> None:
        """Act."""

    with pytest.raises(ValueError, match=r"telling\(free=...\) names \['adress'\]; .*maker has no such options"):
        telling(lambda **options: {}, free=("adress",))(maker)
    assert bound_by(maker, {"heat": 2.0}) == {"heat": 2.0}


def test_fewer_episodes_than_are_stored_names_the_number(
    envgym: Envgym, meeting: dict[str, Any], tmp_path: Path
) -> None:
    assert collected(envgym, tmp_path / "s").code == 0
    ran = collected(envgym, tmp_path / "s", count=5)
    said = f"holds episode 'guess-s0-000011', and -n is 5: give -n {COUNT} or more"
    assert (ran.code, said in ran.err) == (2, True)


# -- groups ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.integers(1, 30), st.integers(1, 7), st.integers(1, 9))
def test_a_group_is_of_one_task_and_ids_and_seeds_are_those_of_no_groups(
    episodes: int, group: int, tasks: int
) -> None:
    grouped = Plan("guess", "random", episodes, Limits(), task_options={"count": tasks}, group=group)
    jobs, alone = list(grouped.jobs(None)), list(replace(grouped, group=1).jobs(None))
    assert [(job.episode_id, job.seed) for job in jobs] == [(job.episode_id, job.seed) for job in alone]
    assert {job.group for job in alone} == {""}
    sizes = Counter((job.group, job.task_id) for job in jobs)
    if group > 1:
        assert len(sizes) == len({job.group for job in jobs}) == -(-episodes // group)
        assert sorted(sizes.values(), reverse=True)[: episodes // group] == [group] * (episodes // group)
    drawn = [job.task_id for job in jobs][::group]
    assert drawn == [f"guess/{index % tasks}" for index in range(len(drawn))]


def test_a_collection_in_groups_goes_on_and_is_refused_with_others(
    envgym: Envgym, meeting: dict[str, Any], tmp_path: Path
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "store"
    assert found(collected(envgym, whole, "--group", "4", "--json"))["group"] == 4
    meeting.update(asked=0, raises=lambda task, asked: Misconfigured("401") if asked > 20 else None)
    assert collected(envgym, out, "--group", "4").code == 2
    meeting["raises"] = lambda task, asked: None
    assert found(collected(envgym, out, "--group", "4", "--json"))["episodes"] == COUNT
    assert {one.id: one for one in StoreReader(out)} == {one.id: one for one in StoreReader(whole)}
    with StoreReader(out) as reader:
        assert [(len(group), group.task_id) for group in reader.groups()] == [(4, f"guess/{n}") for n in range(3)]
    ran = collected(envgym, out)
    assert (ran.code, "group was 4, now it is not given" in ran.err) == (2, True)
    ran = collected(envgym, out, "--group", "4", count=COUNT + 2)
    assert (ran.code, "no multiple of --group 4: the last group is one of 2" in ran.err) == (0, True)
    assert "--group K" not in ran.out


def test_groups_of_one_are_said(envgym: Envgym, meeting: dict[str, Any], tmp_path: Path) -> None:
    assert (
        "every group is one episode: for pairs and credit by comparison, --group K"
        in collected(envgym, tmp_path / "s").out
    )


@pytest.mark.parametrize("cut", range(4))
def test_what_earlier_calls_left_is_found_as_it_is(tmp_path: Path, meeting: dict[str, Any], cut: int) -> None:
    plan = Plan("guess", "meeting", 3, Limits())
    jobs = list(plan.jobs(None))
    with StoreWriter(tmp_path / "s") as store:
        for job in jobs[:cut]:
            store.begin(Began(job.episode_id, job.task_id, Step(), job.seed, provenance=job.rollout.provenance))
    stored = check_store(plan, tmp_path / "s")
    assert (stored.unfinished, stored.ended) == (cut, frozenset())
    assert [stored.id_of(job.episode_id) for job in jobs] == [job.episode_id for job in jobs]


# -- what does nothing is said -----------------------------------------------------------------------------------


def test_a_sandbox_that_nothing_acts_in_is_said_and_one_there_is_not_is_refused(envgym: Envgym) -> None:
    ran = envgym("collect", "guess", "-n", "1", "--sandbox", "dockr")
    assert (ran.code, "unknown sandbox 'dockr'; did you mean 'docker'" in ran.err) == (2, True)
    ran = envgym("collect", "guess", "-n", "1", "--sandbox", "local")
    assert (ran.code, "--sandbox local is not used: 'guess' acts in no sandbox" in ran.err) == (0, True)


def test_snapshots_of_worlds_that_take_none_are_said(envgym: Envgym, memory: None, tmp_path: Path) -> None:
    options = ("--agent", "player", "-n", "3", "--turns", "6", "--snapshot-every", "2", "--out")
    ran = envgym("collect", "guess", *options, str(tmp_path / "guess"))
    assert (ran.code, "--snapshot-every 2 kept none: the worlds of 'guess' take no snapshots" in ran.err) == (
        0,
        True,
    )
    for more in (("--snapshot-every", "2"), ("--snapshot-every", "3")):
        ran = envgym("collect", "memory", *options[:6], *more, "--out", str(tmp_path / "memory"))
        assert (ran.code, "kept none" in ran.err) == (0, False)
    assert envgym("collect", "memory", *options[:6], "--out", str(tmp_path / "bare")).code == 0
    ran = envgym("collect", "memory", *options, str(tmp_path / "bare"))
    assert (ran.code, "kept none" in ran.err) == (0, False), "all of it was played before"
