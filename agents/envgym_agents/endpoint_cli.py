"""The console entry ``envgym endpoint``: serve a model to agent programs, alone or acting in an environment."""

import asyncio
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from envgym.cli.options import key_values
from envgym.env import Env, StopReason
from envgym.episode import Episode
from envgym.limits import Limits, Sampling
from envgym.registry import make, make_backend, spec
from envgym.rollout import Origin, Rollout, play
from envgym.store import StoreReader, StoreWriter, is_store
from envgym_agents.endpoint import Endpoint
from envgym_agents.eyes import eyes_of
from envgym_agents.foreign import Access, command
from envgym_agents.model import load_model, weights_digest
from envgym_agents.policies.transformer import TransformerPolicy
from envgym_agents.template import template_for

__all__ = ["endpoint_command"]


def endpoint_command(  # noqa: PLR0913 - a command has the options it has
    model: Annotated[Path, typer.Argument(help="A local Hugging Face model folder.")],
    program: Annotated[list[str] | None, typer.Argument(help="With --env: the agent program, after `--`.")] = None,
    env: Annotated[str | None, typer.Option(help="The environment that the program acts in.")] = None,
    task: Annotated[int, typer.Option(min=0, help="Which task of it.")] = 0,
    sandbox: Annotated[str, typer.Option(help="Sandbox backend, where the environment needs one.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of the environment and of every draw.")] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Bound on the program's actions.")] = 50,
    max_tokens: Annotated[int, typer.Option(min=1, help="Default bound of one completion.")] = 256,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    device: Annotated[str, typer.Option(help="Where the model runs, such as cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Append the episode to this store.")] = None,
    env_option: Annotated[list[str] | None, typer.Option(help="name=value for the environment.")] = None,
    task_option: Annotated[list[str] | None, typer.Option(help="name=value for its task set.")] = None,
) -> None:
    """Serve a model behind an OpenAI-compatible endpoint; with --env, a program acts in it for one episode.

    The program finds OPENAI_BASE_URL, OPENAI_API_KEY and ENVGYM_EPISODE_URL in its environment. Without --env
    the endpoint serves chat requests until it is interrupted.
    """
    if (env is None) != (not program):
        raise ValueError("--env and a program belong together: envgym endpoint MODEL --env NAME -- PROGRAM ARG...")
    if out is not None and env is None:
        raise ValueError("--out stores the episode of a program in an environment; add --env NAME -- PROGRAM")
    if (env_option or task_option) and env is None:
        raise ValueError("--env-option and --task-option are for the environment of --env, and there is none")
    options = key_values(env_option or (), "--env-option")
    task_options = key_values(task_option or (), "--task-option")
    chosen = None if env is None else spec(env).tasks(**task_options)[task]
    origin = Origin(_new_id(out), seed)
    language_model, tokenizer = load_model(model, device=device)

    async def work() -> Episode | None:
        async with TransformerPolicy(language_model) as policy:
            sampling = Sampling(max_tokens=max_tokens)
            template = template_for(tokenizer, eyes_of(language_model))
            async with Endpoint(policy, template, sampling=sampling, port=port) as endpoint:
                if env is None or chosen is None or not program:
                    _announce(endpoint.open("chat", seed=seed))
                    await asyncio.Event().wait()
                    return None
                async with AsyncExitStack() as stack:
                    backend = None
                    if spec(env).sandbox:
                        backend = await stack.enter_async_context(make_backend(sandbox))
                    world = make(env, chosen, backend=backend, **options)
                    told = (("model", model.resolve().name), ("weights", weights_digest(model)))
                    return await _play(endpoint, world, program, origin=origin, turns=turns, told=told)

    try:
        episode = asyncio.run(work())
    except KeyboardInterrupt:
        return
    if episode is not None:
        _finish(episode, out)


def _new_id(out: Path | None) -> str:
    """An episode id that the store does not hold yet: it counts on from what is there."""
    stored = set(StoreReader(out).ids) if out is not None and is_store(out) else set()
    return next(name for number in count(len(stored)) if (name := f"episode-{number:06d}") not in stored)


async def _play(
    endpoint: Endpoint,
    world: Env,
    program: list[str],
    *,
    origin: Origin,
    turns: int,
    told: tuple[tuple[str, str], ...],
) -> Episode:
    agent = endpoint.agent(origin.episode_id, command(program), env=world, seed=origin.seed)
    try:
        rollout = Rollout(limits=Limits(turns=turns), provenance=(("program", program[0]), *told))
        return await play(world, {agent.name: agent}, origin=origin, rollout=rollout)
    finally:
        await agent.close()
        await world.close()


def _announce(access: Access) -> None:
    for name, value in access.environment().items():
        if name.startswith("OPENAI"):
            typer.echo(f"export {name}={value}")


def _finish(episode: Episode, out: Path | None) -> None:
    if out is not None:
        with StoreWriter(out) as writer:
            writer.append(episode)
    ended = episode.stop if episode.failure is None else f"failed ({episode.failure.boundary})"
    if episode.stop is StopReason.TURN_LIMIT:
        ended = f"stopped after {len(episode.turns)} turns"
    typer.echo(
        f"{episode.task_id}: {ended}; reward {episode.reward}, {len(episode.turns)} turns, "
        f"{episode.sampled_tokens} sampled tokens"
    )
    if episode.failure is not None:
        typer.echo(f"{episode.failure.kind}: {episode.failure.message}", err=True)
        raise typer.Exit(1)
