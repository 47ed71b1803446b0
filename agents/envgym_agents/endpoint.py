"""An OpenAI-compatible door to a policy, keyed by episode: foreign agent programs act, their tokens are recorded.

Served on the loopback interface, behind a key that is new for every run. Routes, under ``/episodes/{id}`` or, with
the episode named in the key (``<key>.<id>``), without that prefix::

    GET  /v1/models                 the one model
    POST /v1/chat/completions       messages in, an assistant message out (also as a stream, sent when complete)
    GET  /observation               the environment's present step
    POST /step                      {"action": text} or {"message": assistant message} -> the next step

It grades nothing and never shortens a program's messages.
"""

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from envgym.env import Env
from envgym.errors import EnvgymError
from envgym.limits import Sampling
from envgym.messages import Action, Message, text_of
from envgym.policy import Completion, Policy, Reply
from envgym_agents.conversation import Template
from envgym_agents.foreign import Access, ForeignAgent, Program
from envgym_agents.openai_format import Refused, checked_request, message_from, message_json, step_json, tools_from
from envgym_agents.parse import read_action
from envgym_agents.recorder import Asked, Recorder

__all__ = ["Endpoint"]

Handler = Callable[[Request, str], Awaitable[Response]]


class Endpoint:
    """The server. An async context manager; inside it, `agent` makes agents for the ordinary rollout.

    sampling: the defaults of requests. max_length: of contexts (the policy's own bound by default). host: the
    loopback interface; another one must be asked for, because whoever holds the key can act. port 0 takes a free
    one.
    """

    def __init__(
        self, policy: Policy, template: Template, *, sampling: Sampling | None = None, model: str = "envgym",
        host: str = "127.0.0.1", port: int = 0,
    ) -> None:  # fmt: skip
        self.policy, self.template, self.model = policy, template, model
        self.sampling = sampling or Sampling()
        self.key = secrets.token_urlsafe(24)
        self.max_length: int = getattr(policy, "max_length", 4096)
        self._host, self._port = host, port
        self._recorders: dict[str, Recorder] = {}
        self._agents: dict[str, ForeignAgent] = {}
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.app = Starlette(routes=self._routes())

    async def __aenter__(self) -> Self:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self._host, self._port))
        listener.listen(256)  # from here on clients may connect: the kernel queues them until the loop serves
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(self.app, log_level="warning", lifespan="off", timeout_graceful_shutdown=2)
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in list(self._agents.values()):
            await agent.close()
        for recorder in self._recorders.values():
            recorder.close()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self._host}:{self._port}"

    def access(self, episode_id: str) -> Access:
        """What a program needs for one episode."""
        episode_url = f"{self.url}/episodes/{episode_id}"
        return Access(f"{episode_url}/v1", f"{self.key}.{episode_id}", episode_url)

    def open(self, episode_id: str, *, seed: int = 0) -> Access:
        """Record an episode of chat requests alone, without an environment. Ids are letters, digits, ``-_.``."""
        self._record(episode_id, seed)
        return self.access(episode_id)

    def agent(
        self, episode_id: str, program: Program, *, env: Env, seed: int, grace_s: float = 5.0
    ) -> ForeignAgent:
        """An agent for one episode in `env` whose decisions `program` makes."""
        recorder = self._record(episode_id, seed)

        async def forget() -> None:
            self._agents.pop(episode_id, None)

        agent = ForeignAgent(
            recorder, program, self.access(episode_id), tools=env.tools, grace_s=grace_s, on_close=forget
        )
        self._agents[episode_id] = agent
        return agent

    def replies(self, episode_id: str) -> tuple[Reply, ...]:
        """Every completion of an episode so far, token-exact, in order."""
        return tuple(self._recorder(episode_id).replies)

    def forget(self, episode_id: str) -> tuple[Reply, ...]:
        """End an episode's record and free it; returns what `replies` would have."""
        recorder = self._recorder(episode_id)
        if episode_id in self._agents:
            raise ValueError(f"episode {episode_id!r} is still acting; close its agent first")
        recorder.close()
        del self._recorders[episode_id]
        return tuple(recorder.replies)

    def _record(self, episode_id: str, seed: int) -> Recorder:
        if not episode_id or not all(c.isalnum() or c in "-_." for c in episode_id):
            raise ValueError(f"episode id {episode_id!r}: it appears in URLs, so use letters, digits, - _ .")
        if episode_id in self._recorders:
            raise ValueError(f"episode {episode_id!r} is already recorded here; every episode needs its own id")
        recorder = Recorder(self.policy, self.template, seed=seed, max_length=self.max_length)
        self._recorders[episode_id] = recorder
        return recorder

    def _recorder(self, episode_id: str) -> Recorder:
        if episode_id not in self._recorders:
            raise ValueError(f"no episode {episode_id!r} here; open it first")
        return self._recorders[episode_id]

    def _routes(self) -> list[Route]:
        handlers: list[tuple[str, str, Handler]] = [
            ("/v1/models", "GET", self._models),
            ("/v1/chat/completions", "POST", self._completions),
            ("/observation", "GET", self._observation),
            ("/step", "POST", self._step),
        ]
        return [
            Route(prefix + path, self._guarded(handler), methods=[method])
            for path, method, handler in handlers
            for prefix in ("", "/episodes/{episode}")
        ]

    def _guarded(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                return await handler(request, self._episode(request))
            except Refused as refused:
                return JSONResponse(refused.body(), refused.status)
            except EnvgymError as error:
                body = {"error": {"message": str(error), "type": type(error).__name__, "code": error.boundary}}
                return JSONResponse(body, 500)

        return answer

    def _episode(self, request: Request) -> str:
        """The episode of a request that holds the right key. Raises Refused."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        key, _, named = given.partition(".")
        if scheme.lower() != "bearer" or not secrets.compare_digest(key.encode(), self.key.encode()):
            raise Refused("wrong or missing API key", status=401, code="invalid_api_key")
        episode = request.path_params.get("episode", named)
        if (named and named != episode) or episode not in self._recorders:
            raise Refused(f"no episode {episode!r} for this key", status=404, code="not_found")
        return str(episode)

    async def _models(self, request: Request, episode: str) -> Response:
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "envgym"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _completions(self, request: Request, episode: str) -> Response:
        asked = checked_request(await _json(request))
        message, completion, held = await self._recorders[episode].complete(self._asked(asked))
        response = self._response(message, completion, held)
        if asked.get("stream"):
            return StreamingResponse(_chunks(response), media_type="text/event-stream")
        return JSONResponse(response)

    def _asked(self, request: dict[str, Any]) -> Asked:
        try:
            sampling = replace(
                self.sampling,
                temperature=float(request.get("temperature", self.sampling.temperature)),
                top_p=float(request.get("top_p", self.sampling.top_p)),
                max_tokens=int(
                    request.get("max_completion_tokens", request.get("max_tokens", self.sampling.max_tokens))
                ),
                seed=None if "seed" not in request else abs(int(request["seed"])),
            )
            actions = request.get("allowed_actions")
            return Asked(
                tuple(message_from(raw) for raw in request["messages"]),
                tools_from(request.get("tools", [])),
                sampling,
                None if actions is None else tuple(map(str, actions)),
            )
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error

    def _response(self, message: Message, completion: Completion, held: int) -> dict[str, Any]:
        finish = "tool_calls" if message.tool_calls else completion.finish
        choice = {"index": 0, "message": message_json(message), "finish_reason": finish, "logprobs": None}
        if not message.tool_calls:
            choice["message"] = {"role": "assistant", "content": text_of(message)}
        sampled = len(completion.ids)
        return {
            "id": f"chatcmpl-{secrets.token_hex(8)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.model,
            "choices": [choice],
            "usage": {"prompt_tokens": held, "completion_tokens": sampled, "total_tokens": held + sampled},
        }

    async def _observation(self, request: Request, episode: str) -> Response:
        agent = self._acting(episode)
        return JSONResponse(step_json(await agent.observation(), agent.tools))

    async def _step(self, request: Request, episode: str) -> Response:
        agent = self._acting(episode)
        body = await _json(request)
        if isinstance(body, dict) and isinstance(body.get("action"), str):
            action = read_action(body["action"], agent.tools)
        elif isinstance(body, dict) and isinstance(body.get("message"), dict):
            action = Action(message=message_from(body["message"]))
        else:
            raise Refused('a step is {"action": text} or {"message": an assistant message}')
        return JSONResponse(step_json(await agent.step(action), agent.tools))

    def _acting(self, episode: str) -> ForeignAgent:
        if episode not in self._agents:
            raise Refused(f"episode {episode!r} has no environment here, or is over", status=409, code="conflict")
        return self._agents[episode]


class _Server(uvicorn.Server):
    """A server that leaves the process's signal handlers alone: it is a guest in somebody's event loop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _json(request: Request) -> Any:
    try:
        return await request.json()
    except ValueError as error:
        raise Refused(f"the body is not JSON: {error}") from error


async def _chunks(response: dict[str, Any]) -> AsyncIterator[str]:
    """A finished response as server-sent events: the message in one piece, the ending, the usage."""
    choice = response["choices"][0]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
    ends = [(delta, None), ({}, choice["finish_reason"])]
    head = {**response, "object": "chat.completion.chunk"}
    for index, (piece, finish) in enumerate(ends):
        chunk = {**head, "choices": [{"index": 0, "delta": piece, "finish_reason": finish}]}
        if index == 0:
            chunk.pop("usage")
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"
