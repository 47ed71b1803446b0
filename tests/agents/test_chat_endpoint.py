"""The agent `chat` against real servers on the loopback interface: good ones, and ones that do what servers do."""

import asyncio
import json
import queue
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch
from envgym_agents.chat_client import Price, Server, shared
from envgym_agents.chat_endpoint import ChatAgent, chat_agent
from envgym_agents.chat_format import read_answer, request_messages
from envgym_agents.endpoint import Endpoint
from envgym_agents.model import new_model, save_model
from envgym_agents.policies.transformer import TransformerPolicy
from envgym_agents.template import OwnTemplate
from envgym_agents.tokenizer import train_tokenizer
from envgym_environments.text.guess import Guess, guess_tasks
from hypothesis import given
from hypothesis import strategies as st

from envgym.cli import run
from envgym.env import Step, StopReason
from envgym.episode import Began
from envgym.errors import AgentFailure, ContextFull, Misconfigured, Overloaded
from envgym.jobs import Job, stream
from envgym.limits import Limits, Sampling
from envgym.messages import Action, Message, ToolCall, text_of
from envgym.provenance import UNKNOWN, told_by
from envgym.registry import make, register, unregister
from envgym.rollout import Rollout
from envgym.store import StoreReader, StoreWriter
from envgym.testing.fakes import ScriptedAgent

torch.set_num_threads(1)
TASK = guess_tasks(1)[0]
HELLO = Step(observation=(Message(role="user", content="hello"),))


def answer(content="hi", calls=(), usage=(10, 5)):
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ]
    body = {"id": "x", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}
    return body if usage is None else {**body, "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}}


@dataclass
class Asked:
    """What a server was asked, and how it answers: a status with a body, or whatever it does to its connection."""

    bodies: list[dict] = field(default_factory=list)
    now: int = 0
    most: int = 0
    statuses: Counter = field(default_factory=Counter)


Answering = Callable[[Asked, asyncio.StreamWriter], Awaitable[tuple[int, object] | None]]


@asynccontextmanager
async def serving(answering: Answering):
    """A server of one route, on sockets, so that a test may do anything to a connection."""
    asked, connections = Asked(), set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                asked.bodies.append(json.loads(await reader.readexactly(length)))
                asked.now += 1
                asked.most = max(asked.most, asked.now)
                try:
                    given = await answering(asked, writer)
                finally:
                    asked.now -= 1
                if given is None:
                    return
                status, body, *more = given
                asked.statuses[status] += 1
                payload = body if isinstance(body, bytes) else json.dumps(body).encode()
                headers = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{''.join(more)}"
                writer.write(f"{headers}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", asked
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()


def each(*answers) -> Answering:
    """Give these in turn, the last one ever after."""

    async def answering(asked, writer):
        given = answers[min(len(asked.bodies), len(answers)) - 1]
        return await given(writer) if callable(given) else given

    return answering


def said(answering: Answering, step: Step = HELLO, **options):
    """What the agent replies to a step, and what the server was asked."""

    async def work():
        async with serving(answering) as (url, asked):
            agent = chat_agent(TASK, seed=0, model="m", base_url=url, key_env="", **options)
            try:
                return await agent.act(step), asked
            finally:
                await agent.close()
                await agent.close()

    return asyncio.run(work())


def test_an_answer_is_an_action_with_its_cost_and_no_tokens():
    tools = Guess(TASK).tools
    reply, asked = said(
        each((200, answer(None, [("guess", '{"number": "7"}')]))), tools=tools, temperature=0.5, max_tokens=9,
        price_in=1.0, price_out=2.0,
    )  # fmt: skip
    assert reply.action.calls == (ToolCall(name="guess", arguments={"number": 7}, id="c0"),)
    assert reply.cost == {"prompt_tokens": 10.0, "completion_tokens": 5.0, "usd": 20e-6}
    assert reply.completion is None
    (body,) = asked.bodies
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.5, 9)
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["guess"]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (("guess", "{not json"), "not a tool call"),
        (("guess", "[1]"), "not a tool call"),
        (("guess", '{"number": "many"}'), "not a valid integer"),
        (("shoot", "{}"), "unknown tool 'shoot'"),
    ],
)
def test_a_bad_call_is_data(call, why):
    reply, _ = said(each((200, answer("so", [("guess", '{"number": 1}'), call]))), tools=Guess(TASK).tools)
    assert why in reply.action.error.message
    assert not reply.action.calls
    assert call[0] in reply.action.text


@pytest.mark.parametrize("usage", [None, "much", [1], {"prompt_tokens": -1, "completion_tokens": "5"}])
def test_a_usage_that_says_nothing_costs_nothing(usage):
    assert said(each((200, {**answer(usage=None), "usage": usage})))[0].cost == {}


async def cut(writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
    await writer.drain()
    writer.close()


async def slam(writer):
    writer.transport.abort()


async def babble(writer):
    writer.write(b"\x00\xff no http at all\r\n\r\n")
    await writer.drain()
    writer.close()


async def hang(writer):
    await asyncio.sleep(60)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bad",
    [
        cut, slam, babble, hang, (200, b"<html>busy</html>"), (200, b"\xff\xfe"), (200, []), (200, {"choices": []}),
        (200, {"choices": [{"message": {"content": 7}}]}), (200, answer(None, [(7, 7)])), (500, {}), (502, b"bad"),
        (429, {}), (503, b"", "Retry-After: 0.2\r\n"), (429, {}, "Retry-After: soon\r\n"), (408, {}),
    ],
)  # fmt: skip
def test_what_a_server_does_wrong_once_is_asked_again(bad):
    reply, asked = said(each(bad, (200, answer("fine"))), request_s=1.0)
    assert (reply.action.text, len(asked.bodies)) == ("fine", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "kind", "why"),
    [
        (cut, AgentFailure, "no answer within 0.6 s and"),
        (hang, AgentFailure, "it had not answered yet"),
        ((200, b"<html>"), AgentFailure, "no chat completion"),
        ((500, {}), AgentFailure, "HTTP 500"),
        ((429, {}), Overloaded, "HTTP 429"),
        ((503, {}, "Retry-After: 99999\r\n"), Overloaded, "HTTP 503"),
    ],
)
def test_what_a_server_does_wrong_all_the_time_is_a_failure_in_the_end(bad, kind, why):
    with pytest.raises(AgentFailure, match=why) as raised:
        said(each(bad), patience_s=0.6)
    assert type(raised.value) is kind


def error(message, code=None, kind="invalid_request_error"):
    return {"error": {"message": message, "type": kind, "code": code}}


@pytest.mark.parametrize("bad", [(400, {}), (501, {}), (400, error("the messages are against our terms"))])
def test_what_another_try_cannot_repair_fails_at_once(bad):
    with pytest.raises(AgentFailure, match=r"refuses the request for model 'm': HTTP .*; look at") as raised:
        said(each(bad, (200, answer())))
    assert type(raised.value) is AgentFailure


@pytest.mark.parametrize(
    "bad",
    [
        (401, {}), (402, {}), (403, b"<html>"), (404, error("no model m", "model_not_found")),
        (400, error("no model m", "model_not_found")), (429, error("pay", "insufficient_quota")),
        (400, error("'max_tokens' is not for this model", "unsupported_parameter")),
    ],
)  # fmt: skip
def test_what_every_request_would_meet_is_a_fault_of_the_configuration(bad):
    with pytest.raises(Misconfigured, match=rf"HTTP {bad[0]}.*look at --agent-option base_url, model and key_env"):
        said(each(bad, (200, answer())))


@pytest.mark.parametrize(
    "bad",
    [
        (400, error("it is too much", "context_length_exceeded")),
        (400, error("the request exceeds what there is", 400, "exceed_context_size_error")),
        (400, error("This model's maximum context length is 4096 tokens, and 5000 are asked for", 400)),
        (400, {"object": "error", "message": "The prompt (length 5000) is longer than the maximum model length"}),
        (400, error("prompt is too long: 210000 tokens > 200000 maximum")),
        (400, error("The input token count (9) exceeds the maximum number of tokens allowed (8).")),
        (400, error("'max_tokens' is too large: 9. This model's maximum context length is 4096 tokens", 400)),
        (413, error("Request too large")),
    ],
)
def test_a_conversation_that_is_too_long_is_told_from_other_refusals(bad):
    with pytest.raises(ContextFull, match=f"HTTP {bad[0]}"):
        said(each(bad, (200, answer())), max_tokens=9)


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 5000. This model supports at most 4096 completion tokens",
        "'max_tokens' is too large: 5000. This model's maximum context length is 4096 tokens",
    ],
)
def test_an_answer_that_fits_no_request_is_a_fault_of_the_configuration(message):
    with pytest.raises(Misconfigured, match="lower --agent-option max_tokens=5000"):
        said(each((400, error(message)), (200, answer())), max_tokens=5000)


@pytest.mark.parametrize("turns", [0, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_a_conversation_that_outgrows_its_context_is_truncated_with_what_was_played(tmp_path, turns, kept):
    too_long = (400, error("too long", "context_length_exceeded"))
    answers = [(200, answer(None, [("guess", '{"number": 1}')]))] * turns

    async def work():
        async with serving(each(*answers, too_long)) as (url, _asked):

            async def world():
                return make("guess", TASK)

            def agent(env):
                return chat_agent(TASK, seed=0, model="m", base_url=url, key_env="", tools=env.tools)

            job = Job(world, agent, TASK.id, 1, "e", Rollout(Limits(turns=9)))
            if not kept:
                return [episode async for episode in stream([job], concurrency=1)]
            with StoreWriter(tmp_path / "s") as store:
                episodes = [episode async for episode in stream([job], concurrency=1, memory=store)]
                assert not store.unfinished
                assert [store["e"]] == episodes
                return episodes

    (episode,) = asyncio.run(work())
    assert (episode.stop, episode.failure, len(episode.turns)) == (StopReason.CONTEXT_LIMIT, None, turns)
    assert episode.stop.truncated


def test_of_a_servers_model_only_the_name_is_known():
    told = told_by(chat_agent, {"model": "gpt-5-mini", "base_url": "http://me:pass@there/v1", "temperature": 0.0})
    assert told == (("model", "gpt-5-mini"), ("weights", UNKNOWN))


def test_nobody_listening_is_a_failure_that_names_the_address():
    async def work():
        agent = chat_agent(TASK, seed=0, model="m", base_url="http://127.0.0.1:9/v1", key_env="", patience_s=0.5)
        try:
            await agent.act(HELLO)
        finally:
            await agent.close()

    with pytest.raises(AgentFailure, match=r"http://127.0.0.1:9/v1: no answer .* APIConnectionError"):
        asyncio.run(work())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key_env": "NO_SUCH_KEY"}, "key_env=NO_SUCH_KEY: there is no such environment variable"),
        ({"base_url": "localhost:80"}, "base_url is 'localhost:80'; it must begin with http"),
        ({"patience_s": 0}, "patience_s is 0"),
        ({"price_in": -1}, "price_in is -1"),
        ({"most": 0}, "most is 0; it must be at least 1"),
        ({"max_tokens": -8}, "max_tokens is -8; it must be at least 1"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5; it must be an int"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"temperature": -0.1}, "temperature is -0.1; it must be at least 0"),
        ({"top_p": 1.5}, "top_p is 1.5; it must be from 0 to 1"),
        ({"top_p": 0}, "top_p is 0; it must be more than 0"),
    ],
)
def test_options_that_cannot_be_are_the_callers_mistake(options, said):
    async def work():
        chat_agent(TASK, seed=0, model="m", **{"key_env": "", **options})

    with pytest.raises((ValueError, TypeError), match=said):
        asyncio.run(work())


@pytest.mark.slow
def test_a_storm_of_429_shrinks_what_is_in_flight_and_fails_no_episode():
    capacity = 3

    async def answering(asked, writer):
        if asked.now > capacity:
            return 429, {"error": {"message": "slow down"}}
        await asyncio.sleep(0.01)
        if len(asked.bodies) % 7 == 0:
            return 503, b""
        return 200, answer(None, [("guess", '{"number": 3}')])

    async def work():
        async with serving(answering) as (url, asked):

            async def world():
                return make("guess", TASK)

            def agent(env):
                return chat_agent(TASK, seed=0, model="m", base_url=url, key_env="", tools=env.tools)

            rollout = Rollout(Limits(turns=3))
            jobs = [Job(world, agent, TASK.id, n, f"e{n}", rollout) for n in range(60)]
            episodes = [episode async for episode in stream(jobs, concurrency=40)]
            return episodes, asked

    episodes, asked = asyncio.run(work())
    assert sorted(episode.id for episode in episodes) == sorted(f"e{n}" for n in range(60))
    assert not [episode.failure for episode in episodes if episode.failure]
    turns = sum(len(episode.turns) for episode in episodes)
    assert asked.statuses[200] == turns
    assert asked.statuses[429] < turns, "who is refused comes back later, not at once"


def test_the_clients_of_a_server_share_its_connections_until_the_last_is_closed():
    async def work():
        server = Server("http://127.0.0.1:9/v1", "k")
        one, other = shared(server, "m"), shared(server, "n", price=Price(1, 1))
        third = one.again(seed=2)
        assert one._link is other._link is third._link
        for client in (one, other):
            await client.close()
            assert not one._link.openai.is_closed()
        await third.close()
        assert one._link.openai.is_closed()
        fresh = shared(server, "m")
        assert fresh._link is not one._link
        await fresh.close()

    asyncio.run(work())
    assert "'k'" not in repr(Server("http://x", "k"))


texts = st.text(st.characters(codec=None), max_size=8)
heard = st.builds(
    Message,
    role=st.sampled_from(["user", "tool", "system"]),
    content=texts,
    tool_call_id=st.sampled_from(["", "a", "b"]),
)
calls = st.lists(st.builds(ToolCall, name=st.just("f"), id=st.sampled_from(["", "a", "b"])), max_size=3)
spoken = st.builds(lambda text, made: Message(role="assistant", content=text, tool_calls=tuple(made)), texts, calls)


@given(st.lists(heard | spoken, max_size=12))
def test_every_call_is_answered_once_right_after_it_and_no_text_is_lost(history: Sequence[Message]):
    written = request_messages(history)
    open_ids: list[str] = []
    seen: set[str] = set()
    for body in written:
        json.dumps(body, ensure_ascii=False).encode()
        if body["role"] == "tool":
            assert open_ids.pop(0) == body["tool_call_id"]
            continue
        assert not open_ids
        open_ids = [call["id"] for call in body.get("tool_calls", [])]
        assert not seen & set(open_ids)
        seen |= set(open_ids)
    assert not open_ids
    clean = [text_of(message).encode("utf-8", "replace").decode() for message in history]
    assert sorted(filter(None, clean)) == sorted(body["content"] for body in written if body["content"])


names = st.sampled_from(["content", "tool_calls", "function", "name", "arguments", "id", "refusal"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_any_json_as_a_message_is_an_action_or_the_servers_fault(raw):
    try:
        action = read_answer(raw, Guess(TASK).tools)
    except ValueError:
        return
    assert action.message.role == "assistant"
    assert not (action.error and action.calls)


@pytest.mark.slow
def test_it_plays_through_our_own_endpoint():
    """The server is `envgym endpoint`'s, the model is real and knows nothing."""
    numbers = [f"guess {n}" for n in range(1, 21)]
    said = ["higher lower " + TASK.prompt] * 3
    tokenizer = train_tokenizer(said, actions=numbers, vocab_size=340)
    model = new_model(len(tokenizer), size="tiny", context=2048)

    async def work():
        async with (
            TransformerPolicy(model) as policy,
            Endpoint(policy, OwnTemplate(tokenizer), sampling=Sampling(max_tokens=8)) as endpoint,
        ):
            access = endpoint.open("e1")

            async def world():
                return make("guess", TASK)

            def agent(env):
                server = Server(access.base_url, access.api_key)

                return ChatAgent(shared(server, "envgym"), tools=env.tools)

            job = Job(world, agent, TASK.id, 1, "e1", Rollout(Limits(turns=3)))
            (episode,) = [episode async for episode in stream([job], concurrency=1)]
            return episode, endpoint.replies("e1")

    episode, replies = asyncio.run(work())
    assert episode.failure is None
    assert len(episode.turns) == len(replies) == 3
    assert episode.sampled_tokens == 0, "its turns never train"
    sampled = [turn.step.cost["completion_tokens"] for turn in episode.turns]
    assert sampled == [len(reply.completion.ids) for reply in replies]


@contextmanager
def in_a_thread(answering: Answering):
    """The same server for a program that has its own event loop."""
    found: queue.Queue = queue.Queue()

    async def work():
        over = asyncio.Event()
        async with serving(answering) as (url, asked):
            found.put((url, asked, partial(asyncio.get_running_loop().call_soon_threadsafe, over.set)))
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    url, asked, stop = found.get(timeout=60)
    try:
        yield url, asked
    finally:
        stop()
        thread.join(10)


def collected(out, url, *more):
    options = [f"base_url={url}", "model=m", 'key_env=""', "price_in=1000", "price_out=2000"]
    given = [part for option in options for part in ("--agent-option", option)]
    return run(
        ["collect", "guess", "--policy", "chat", "--n", "12", "--turns", "3", "--out", str(out), *given, *more]
    )


@pytest.mark.slow
def test_a_collection_that_was_refused_goes_on_at_another_address_with_other_prices(tmp_path, capsys):
    out, right = tmp_path / "store", (200, answer(None, [("guess", '{"number": 1}')]))

    async def expiring(asked, writer):
        return right if len(asked.bodies) <= 5 else (401, error("the key has expired", "invalid_api_key"))

    with in_a_thread(expiring) as (url, asked):
        assert collected(out, url, "--concurrency", "1") == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert "HTTP 401" in last
        assert "look at --agent-option base_url, model and key_env (" in last
        assert last.endswith(f"of 12 episodes were played, kept in {out}; the same command goes on)")
    with StoreReader(out) as reader:
        before = sum(len(one.turns) for one in reader) + sum(len(one.turns) for one in reader.unfinished.values())
        assert (before, [one.failure for one in reader if one.failure]) == (5, [])
    with in_a_thread(each(right)) as (url, asked):
        assert collected(out, url, "--concurrency", "2", "--agent-option", "patience_s=9", "--json") == 0
        whole = json.loads(capsys.readouterr().out)
        assert len(asked.bodies) == whole["turns"] - 5, "what was said is not asked again"
    assert (whole["episodes"], whole["failed"]) == (12, 0)


@pytest.mark.slow
def test_a_collection_from_a_server_is_paid_by_what_it_reports_and_goes_on(tmp_path, capsys):
    out, conversations = tmp_path / "store", list[list[str]]()

    async def answering(asked, writer):
        if asked.now > 2:
            return 429, {}
        await asyncio.sleep(0.01)
        conversations.append([message["role"] for message in asked.bodies[-1]["messages"]])
        return 200, answer(None, [("guess", '{"number": 1}')])

    with in_a_thread(answering) as (url, asked):
        assert collected(out, url, "--budget-cost", "0.1", "--concurrency", "4", "--json") == 0
        first = json.loads(capsys.readouterr().out)
        assert first["ended_by"].startswith("--budget-cost 0.1 is spent (")
        assert first["episodes"] < 12
        assert first["usd"] == pytest.approx(asked.statuses[200] * 0.02)
        assert first["tokens"] == asked.statuses[200] * 15
        with StoreReader(out) as reader, StoreWriter(tmp_path / "cut") as cut:  # killed in its second turn
            episode = next(one for one in reader if len(one.turns) == 3)
            cut.begin(Began.of(episode))
            cut.turn(episode.id, 0, episode.turns[0])
            cut.said(episode.id, 1, replace(episode.turns[1], step=Step(cost=episode.turns[1].step.cost)))
        before = asked.statuses[200]
        assert collected(tmp_path / "cut", url, "--budget-tokens", "1000000", "--concurrency", "1", "--json") == 0
        whole = json.loads(capsys.readouterr().out)
        assert asked.statuses[200] - before == whole["turns"] - 2, "what was said is not asked again"
        assert (whole["episodes"], whole["failed"], whole["ended_by"]) == (12, 0, None)
        assert collected(out, url, "--json") == 0
        assert json.loads(capsys.readouterr().out)["episodes"] == 12
    assert ["user", "assistant", "tool"] in conversations
    with StoreReader(out) as reader:
        assert not any(len(turn.sampled_ids) for episode in reader for turn in episode.turns)


def test_calls_written_in_text_are_read_and_tools_are_shown_in_words():
    text = "Action: guess\nAction Input: 7"
    reply, asked = said(each((200, answer(text))), tools=Guess.tools, call_format="react")
    (call,) = reply.action.calls
    assert (call.name, call.arguments, reply.action.text) == ("guess", {"number": 7}, text)
    assert "tools" not in asked.bodies[0]
    assert "Action Input" in asked.bodies[0]["messages"][0]["content"]
    assert reply.shown[0].role == "system"
    wrong, _ = said(each((200, answer("Action: gues"))), tools=Guess.tools, call_format="react")
    assert "unknown tool 'gues'" in wrong.action.error.message
    with pytest.raises(ValueError, match="call_format is 'reakt'; did you mean 'react'"):
        said(each((200, answer())), call_format="reakt")


@pytest.mark.slow
def test_the_user_of_a_service_is_a_model_behind_a_server_and_a_killed_talk_goes_on_at_another(tmp_path, capsys):
    def asks(task, *, seed):
        return ScriptedAgent(["What can I do for you?", "Anything else?"])

    def talked(url):
        user = {"agent": "chat", "options": {"base_url": url, "model": "m", "key_env": "", "temperature": 0.5}}
        options = [
            "--actor",
            f"user={json.dumps(user)}",
            "--env-option",
            "user=actor",
            "--out",
            str(tmp_path / "s"),
        ]
        return run(["collect", "service", "--agent", "asks", "-n", "1", *options, "--json"])

    async def expiring(asked, writer):
        expired = len(asked.bodies) > 1
        return (
            (401, error("the key has expired", "invalid_api_key")) if expired else (200, answer("I need a thing."))
        )

    register("agents", "asks", asks)
    try:
        with in_a_thread(expiring) as (url, _):
            assert talked(url) == 2
            capsys.readouterr()
        with in_a_thread(each((200, answer("Goodbye.")))) as (url, asked):
            assert talked(url) == 0, capsys.readouterr().err
    finally:
        unregister("agents", "asks")
    with StoreReader(tmp_path / "s") as reader:
        (episode,) = reader
    said = [(turn.actor, text_of(turn.messages[-1])) for turn in episode.turns]
    assert said == [
        ("agent", "What can I do for you?"), ("user", "I need a thing."),
        ("agent", "Anything else?"), ("user", "Goodbye."),
    ]  # fmt: skip
    (body,) = asked.bodies
    assert "tools" not in body, "they are the agent's"
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][0]["content"].startswith("You are the user of a service.")
    assert dict(episode.provenance)["user model"] == "m"


def test_models_of_route_are_a_server_and_a_transformer_and_are_paid_by_the_tokens_that_they_say(tmp_path, capsys):
    """Through the command line: a chat server and a folder of random weights, beside a script that asks them."""
    tokenizer = train_tokenizer(["What is it? forty"] * 3, vocab_size=320)
    save_model(tmp_path / "weights", new_model(len(tokenizer), size="tiny", context=512), tokenizer)

    def asking(task, *, seed):
        asks = [Action.call("ask_model", name=name, question="What is it?") for name in ("Heron", "Wren")]
        return ScriptedAgent([*asks, Action.call("answer", value=str(task.metadata["answer"]))])

    register("agents", "asking", asking)
    try:
        with in_a_thread(each((200, answer("forty")))) as (url, asked):
            heron = {"agent": "chat", "options": {"base_url": url, "model": "m", "key_env": ""}}
            wren = {"agent": "lm", "options": {"model": str(tmp_path / "weights"), "max_tokens": 7}}
            given = (
                "--task-option", "questions=maths", "--task-option", "difficulty=1",
                "--env-option", 'actors={"Heron": {"shown": 20, "sampled": 40}, "Wren": 100}',
                "--actor", f"Heron={json.dumps(heron)}", "--actor", f"Wren={json.dumps(wren)}",
            )  # fmt: skip
            out = tmp_path / "store"
            assert run(["collect", "route", "--agent", "asking", "-n", "1", "--out", str(out), *given]) == 0
    finally:
        unregister("agents", "asking")
    assert [message["content"] for message in asked.bodies[0]["messages"]] == ["What is it?"]
    assert "tools" not in asked.bodies[0]
    with StoreReader(out) as reader:
        (episode,) = reader
    assert (episode.failure, episode.sampled_tokens) == (None, 0)
    assert [turn.actor for turn in episode.turns] == ["agent", "Heron", "agent", "Wren", "agent"]
    server, weights = (episode.turns[at].step for at in (1, 3))
    assert server.text == "Heron says: forty"
    assert episode.turns[1].action.spent == (("prompt_tokens", 10.0), ("completion_tokens", 5.0)), "kept"
    assert server.cost["priced_usd"] == pytest.approx((10 * 20 + 5 * 40) / 1e6)
    assert 1 <= weights.cost["completion_tokens"] <= 7
    assert weights.cost["prompt_tokens"] > 0
    assert weights.cost["priced_usd"] == pytest.approx(weights.cost["completion_tokens"] * 100 / 1e6)
    last = episode.turns[-1].step
    assert last.channels["tokens"] == 5 + weights.cost["completion_tokens"]
    assert last.channels["usd"] == pytest.approx(server.cost["priced_usd"] + weights.cost["priced_usd"])
    assert last.reward == pytest.approx(1 - 0.5 * last.channels["usd"] / 0.01)
