"""Collects trajectories: any registered agent in any registered environment, written as they happen.

It plays and stores; it does not train, and success is whatever the environment's own steps say. Stopped by a
budget, by Ctrl-C, SIGTERM or SIGKILL, or by a server that refuses the key, the same command goes on, and every
episode is played once.
"""

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envgym.browsing import pages_kept
from envgym.cli.options import key_values
from envgym.cli.plan import Plan, run_plan
from envgym.cli.spending import Budget, Meter
from envgym.cli.stored import Stored, check_store
from envgym.cli.tally import Tally, show
from envgym.errors import Misconfigured
from envgym.limits import Limits
from envgym.others import others_of
from envgym.registry import find, names, spec
from envgym.store import StoreReader, StoreWriter, is_store

if TYPE_CHECKING:
    from envgym.progress import Bar

__all__ = ["collect_command"]

_TICK_S = 0.5

_PASSES = "what plays is finished, and spends more."
_RETRY_FAILED = typer.Option("--retry-failed", help="Play again what failed in earlier calls, which stays stored.")
_SNAPSHOT_EVERY = typer.Option(
    min=0, help="Turns between snapshots of a world that takes some, so that a killed run need not replay; 0: none."
)
_ACTOR = typer.Option(
    help='NAME=AGENT, who plays another actor of the world, such as user=chat, or NAME=\'{"agent": ..., '
    '"options": {...}}\'; repeatable.'
)
_BUDGET_TOKENS = typer.Option(min=1, help=f"Begin nothing after so many tokens; {_PASSES}")
_BUDGET_S = typer.Option(help="Stop after so many seconds of all calls; what plays stays unfinished.")
_BUDGET_COST = typer.Option(help=f"Begin nothing after so many US dollars; {_PASSES}")


def collect_command(  # noqa: PLR0913  # one parameter per option
    env: Annotated[str, typer.Argument(help="A registered environment; see `envgym list`.")],
    agent: Annotated[str, typer.Option("--agent", "--policy", help="A registered agent.")] = "random",
    episodes: Annotated[int, typer.Option("-n", "--n", "--episodes", min=1, help="How many episodes.")] = 16,
    out: Annotated[Path | None, typer.Option(help="Store the episodes here; the same command goes on.")] = None,
    group: Annotated[int, typer.Option(min=1, help="Episodes of each drawn task, of the -n, as one group.")] = 1,
    split: Annotated[str | None, typer.Option(help="Only tasks of this split.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes tasks' and agents' draws.")] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Bound on an episode's turns.")] = Limits().turns,
    concurrency: Annotated[int, typer.Option(min=1, help="Most episodes at a time.")] = 16,
    retries: Annotated[int, typer.Option(min=0, help="Further tries of an episode whose world failed.")] = 0,
    retry_failed: Annotated[bool, _RETRY_FAILED] = False,
    snapshot_every: Annotated[int, _SNAPSHOT_EVERY] = 0,
    budget_tokens: Annotated[int | None, _BUDGET_TOKENS] = None,
    budget_s: Annotated[float | None, _BUDGET_S] = None,
    budget_cost: Annotated[float | None, _BUDGET_COST] = None,
    sandbox: Annotated[str, typer.Option(help="Sandbox backend, where the environment needs one.")] = "auto",
    env_option: Annotated[list[str] | None, typer.Option(help="name=value for the environment.")] = None,
    task_option: Annotated[list[str] | None, typer.Option(help="name=value for its task set.")] = None,
    agent_option: Annotated[list[str] | None, typer.Option(help="name=value for the agent.")] = None,
    actor: Annotated[list[str] | None, _ACTOR] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable summary.")] = False,
) -> None:
    """Collect trajectories with a registered agent: bounded concurrency, budgets, progress, a table of failures."""
    if snapshot_every and out is None:
        raise ValueError("--snapshot-every without --out: nothing is kept that could go on from a snapshot")
    if retry_failed and out is None:
        raise ValueError(
            "--retry-failed without --out: no earlier call is known whose failures it could play again"
        )
    budget = Budget(budget_tokens, budget_s, budget_cost)
    plan = Plan(
        env, agent, episodes, Limits(turns=turns), split, seed, concurrency, retries, sandbox,
        key_values(env_option or (), "--env-option"),
        key_values(task_option or (), "--task-option"),
        key_values(agent_option or (), "--agent-option"),
        snapshot_every, group, others_of(key_values(actor or (), "--actor"), "--actor"),
    )  # fmt: skip
    _check_sandbox(plan)
    tally = Tally(plan)
    meter = _collected(tally, out, budget, again=retry_failed)
    summary = tally.summary(out, meter)
    for note in filter(None, (budget.unmet(meter.spent) if tally.turns else None, *tally.notes())):
        print(f"envgym: {note}", file=sys.stderr)
    if as_json:
        json.dump(summary, sys.stdout, indent=1)
        print()
    else:
        show(summary)
    if summary["failed"] and summary["failed"] == summary["episodes"]:
        raise typer.Exit(1)


def _collected(tally: Tally, out: Path | None, budget: Budget, *, again: bool) -> Meter:
    """Play, or say how to go on. again: what failed in earlier calls too."""
    stored = Stored() if out is None else check_store(tally.plan, out, again=again)
    terminated = asyncio.Event()
    try:
        with _refused_leaves_nothing(out):
            return asyncio.run(_collect(tally, out, stored, budget, terminated))
    except KeyboardInterrupt as error:
        error.add_note(_kept(tally, out, stored))
        raise
    except Misconfigured as error:
        raise Misconfigured(f"{error} ({_kept(tally, out, stored)})") from error
    except asyncio.CancelledError:
        if not terminated.is_set():
            raise
        print(f"envgym: terminated; {_kept(tally, out, stored)}", file=sys.stderr)
        raise typer.Exit(128 + signal.SIGTERM) from None


def _check_sandbox(plan: Plan) -> None:
    """Raise ValueError for a backend there is not; say so of one that nothing acts in."""
    if plan.sandbox == "auto" or spec(plan.env).sandbox:
        return
    if plan.sandbox not in names("sandboxes"):
        find("sandboxes", plan.sandbox)
    print(f"envgym: --sandbox {plan.sandbox} is not used: {plan.env!r} acts in no sandbox", file=sys.stderr)


@contextmanager
def _refused_leaves_nothing(out: Path | None) -> Iterator[None]:
    """Where nothing was played because of a mistake, the store that was made for it goes."""
    fresh = out is not None and not out.exists()
    try:
        yield
    except Exception:
        if out is not None and fresh and is_store(out):
            with StoreReader(out) as reader:
                empty = not reader.ids and not reader.unfinished
            if empty:
                shutil.rmtree(out)
        raise


def _kept(tally: Tally, out: Path | None, stored: Stored) -> str:
    count = tally.plan.episodes
    if out is None:
        return f"{tally.done} of {count} episodes were played, none is kept (--out STORE keeps them)"
    kept = 0
    if is_store(out):
        with StoreReader(out) as reader:
            kept = len(stored.counted(reader.ids))
    return f"{kept} of {count} episodes were played, kept in {out}; the same command goes on"


async def _collect(
    tally: Tally, out: Path | None, stored: Stored, budget: Budget, terminated: asyncio.Event
) -> Meter:
    from rich.console import Console  # only who plays pays for it

    from envgym.progress import Bar

    plan = tally.plan
    with ExitStack() as stack:
        stack.enter_context(_terminating(terminated))
        writer = stack.enter_context(StoreWriter(out)) if out is not None else None
        meter = Meter(budget, writer, stored=stored.ended, spent=stored.spent)
        stack.callback(meter.save)
        bar = stack.enter_context(Bar(Console(stderr=True), "episodes", plan.episodes))
        if stored.ended or stored.unfinished:
            bar.say(f"{out} holds {len(stored.ended)} of {plan.episodes} episodes; the others are played")
        async with pages_kept(plan.concurrency):
            await _play(tally, meter, bar, stored, out)
    if out is not None and tally.done < plan.episodes:
        with StoreReader(out) as reader:  # what ended while the time was up
            lacking = stored.counted(reader.ids) - tally.seen
            for episode in reader:
                if episode.id in lacking:
                    tally.add(episode, earlier=episode.id in stored.ended)
    return meter


async def _play(tally: Tally, meter: Meter, bar: "Bar", stored: Stored, out: Path | None) -> None:
    """Play the plan until it is done or the time is up."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            meter.save()
            bar.tell(tally.note(meter))

    bound_s = meter.budget.wall_s
    left_s = None if bound_s is None or meter.over else bound_s - meter.wall_s
    ticking = asyncio.create_task(tick())
    try:
        playing = run_plan(tally.plan, meter, out, check_images=stored.check_images, id_of=stored.id_of)
        async with asyncio.timeout(left_s) as timeout, aclosing(playing) as episodes:
            async for episode in episodes:
                earlier = episode.id in stored.ended
                tally.add(episode, earlier=earlier)
                bar.update(tally.done, tally.note(meter), measured=not earlier, at_most_s=meter.left_s())
    except TimeoutError:
        if not timeout.expired():
            raise
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])
    if not ticking.cancelled() and (error := ticking.exception()) is not None:
        raise error


@contextmanager
def _terminating(terminated: asyncio.Event) -> Iterator[None]:
    """SIGTERM ends the current task once, as an interrupt does: what is open is closed."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end() -> None:
        if not terminated.is_set():
            terminated.set()
            task.cancel()

    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
