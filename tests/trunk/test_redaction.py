"""Redaction: no planted secret survives in the bytes of any export, whatever field it sat in, and none is told."""

import contextlib
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from envgym.env import Step, StopReason
from envgym.episode import Episode, ForkPoint, Group, Turn
from envgym.episode_json import episode_to_json
from envgym.formats import Card, Options, export, read_groups
from envgym.formats.exact import packed, told_episode
from envgym.messages import Message
from envgym.redaction import Host, Redactor
from envgym.testing.check_format import sample_groups

FORMATS = ("atif", "chat", "datasets", "minari", "sharegpt", "swe-agent", "verifiers")
HOST = Host(homes=("/home/ada",), users=("adalove",), names=("bigbox.lan",), scratch=("/dev/shm",))
ENVIRONMENT = {"DEPLOY_TOKEN": 'hunter2"\\hunter2', "MY_PASSWORD": "correct horse battery", "EDITOR": "vi-improved"}
_A40 = "0123456789abcdefABCDEF0123456789abcdefgh"
PLANTED = {
    "api-key": [
        "sk-proj-" + _A40,
        "ghp_" + _A40,
        "AKIA" + "ABCDEFGH12345678",
        "hf_" + _A40,
        "xoxb-12345-" + _A40,
        "whsec_" + _A40,
        "ntn_" + _A40,
    ],
    "bearer-token": ["Bearer 4f9a1c2b3d4e5f60718293"],
    "url-password": ["postgres://ada:s3cr3tpw@db.internal/x"],
    "web-token": ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123_-x"],
    "private-key": [
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----"
    ],
    "named-secret": [
        "export FOO_API_KEY='p4ss w0rd!'",
        "SECRET_KEY=abcd1234efgh",
        '{"OPENAI_API_KEY": "abcd1234efgh"}',
        'os.environ["API_KEY"] = "abcd1234efgh"',
        'password="abcd1234efgh"',
        "aws_secret_access_key = abcdEFGHijklMNOPqrst1234",
        "PGPASSWORD=abcd1234efgh",
        "export DB_PASS=abcd1234efgh",
        "SLACK_WEBHOOK_URL=abcd1234efgh",
        "{'secret_key': 'abcd1234efgh'}",
        'secretKey: "abcd1234efgh"',
        "clientSecret=abcd1234efgh",
        "EndpointSuffix=x;AccountKey=abcd1234efgh==;",
        "password=abcd1234efgh",
    ],
    "url-secret": [
        "https://x.example/get?a=1&token=abcd1234efgh&b=2",
        "https://hooks.slack.com/services/abcd1234efgh",
    ],
    "option": [
        "curl --token abcd1234efgh there",
        "curl -sS -u ada:abcd1234efgh http://x",
        "sshpass -p abcd1234efgh ssh x",
    ],
    "authorization": ["authorization: Basic dXNlcjpwYXNzd29yZA=="],
    "environment": list(ENVIRONMENT.values())[:2],
    "home": ["/home/ada/project/x.py"],
    "user": ["adalove@there"],
    "host": ["on bigbox.lan now"],
    "sandbox-directory": ["/dev/shm/envgym-1000-k3/u"],
}
SECRETS = {  # what must not be there, of what is planted
    "Bearer 4f9a1c2b3d4e5f60718293": "4f9a1c2b3d4e5f60718293",
    "postgres://ada:s3cr3tpw@db.internal/x": "s3cr3tpw",
    "export FOO_API_KEY='p4ss w0rd!'": "p4ss w0rd!",
    "SECRET_KEY=abcd1234efgh": "abcd1234efgh",
    "authorization: Basic dXNlcjpwYXNzd29yZA==": "dXNlcjpwYXNzd29yZA==",
    "/home/ada/project/x.py": "/home/ada",
    "adalove@there": "adalove",
    "on bigbox.lan now": "bigbox.lan",
    "/dev/shm/envgym-1000-k3/u": "envgym-1000-k3",
    **dict.fromkeys(PLANTED["named-secret"][2:5] + PLANTED["named-secret"][6:], "abcd1234efgh"),
    PLANTED["named-secret"][5]: "abcdEFGHijklMNOPqrst1234",
    **dict.fromkeys(PLANTED["url-secret"] + PLANTED["option"], "abcd1234efgh"),
    PLANTED["private-key"][0]: "b3BlbnNzaC1rZXktdjEAAAAA",
}
ALL = [(kind, text) for kind, texts in PLANTED.items() for text in texts]


def redactor() -> Redactor:
    return Redactor(host=HOST, environment=ENVIRONMENT)


@pytest.mark.parametrize(("kind", "text"), ALL, ids=[f"{kind}-{k}" for k, (kind, _) in enumerate(ALL)])
def test_a_secret_becomes_a_placeholder_of_its_kind(kind: str, text: str) -> None:
    made = redactor()
    done = made.text(f"before {text} after")
    assert SECRETS.get(text, text) not in done
    assert done.startswith("before ")
    assert done.endswith(" after")
    assert f"[redacted:{kind}:1]" in done
    assert made.found == ((kind, 1),)
    assert made.text(done) == done, "what is redacted stays as it is"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("PGPASSWORD", True), ("DB_PASS", True), ("SLACK_WEBHOOK", True), ("SLACK_WEBHOOK_URL", True),
        ("MYSECRET", True),
        ("SSH_ASKPASS", False), ("GITHUB_TOKEN_FILE", False), ("MAX_TOKENS", False), ("SERVICE_URL", False),
        ("COMPASS", False), ("KEYBOARD", False),
    ],
)  # fmt: skip
def test_a_variable_whose_name_says_so_is_secret(name: str, secret: bool) -> None:
    made = Redactor(host=HOST, environment={name: "quite harmless"})
    assert (made.text("this is quite harmless") != "this is quite harmless") is secret


def test_the_same_secret_has_the_same_placeholder_and_another_has_another() -> None:
    made = redactor()
    one, two = "ghp_" + _A40, "ghp_" + _A40[::-1]
    assert made.text(f"{one} {two} {one}") == "[redacted:api-key:1] [redacted:api-key:2] [redacted:api-key:1]"
    assert made.found == (("api-key", 3),)


@pytest.mark.parametrize(
    "text",
    [
        "the task-list of bob, sk-learn and token=5", "bearer of bad news", "https://example.com:8080/a@b",
        "root@box:/root# ls /home/adam /home/ada-x", "MAX_TOKENS=4096", "key: value", "git@github.com:a/b.git",
        "token = tokens[index]", "password = getpass()", '{"token": "the"}', "secret = 'no digit here'",
        "--token $TOKEN",
        "f(token=self.tokens[0])", "next_token: int = 12345678", "0a" * 32, "a" * 5000, "eyJ", "monkey=banana",
        "/dev/shm/other", "adaloves", "PASS: TestReadsTheWholeFile", "password=args.password1", "pwd=getpwd1(x)",
        "password=passwords[12]", "docker run -u 1000:1000 image", "curl -u $USER:$PASSWORD http://x", "nextToken",
        "secretKey: string;", "docker exec --user 1000:10001 box",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert redactor().text(text) == text


def test_a_cookie_goes_to_the_end_of_its_line() -> None:
    done = redactor().text("GET / HTTP/1.1\nCookie: session=abcd1234; other=5\nAccept: */*")
    assert done == "GET / HTTP/1.1\nCookie: [redacted:cookie:1]\nAccept: */*"


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        "A_",
        "a_",
        "?key=",
        "A_PASS=",
        "AccountKey=",
        "curl -u ",
        "curl a:",
        "password=a1",
        "sshpass -p ",
        "--token ",
        "cookie: ",
        "password='1",
        "token_",
        "://",
        "-----BEGIN PRIVATE KEY-----",
        "Bearer ",
        "eyJ.",
        "KEY=",
        "a:",
        "sk-",
    ],
)
def test_no_text_takes_long(run: str) -> None:
    """A megabyte of anything: the patterns are linear. The timeout is the assertion."""
    redactor().text(run * (1_000_000 // len(run)))


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every text of an episode's JSON, keys that are the data's own too (as the place of a value and "key")."""
    fixed = {
        "role",
        "type",
        "stop",
        "boundary",
        "restore",
        "prompt_ids",
        "sampled_ids",
        "logprobs",
        "root_",
        "roles",
    }
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in fixed or (path and path[-1] in ("info", "arguments")):
                yield from _places(inner, (*path, key))
            if path and path[-1] in ("info", "arguments", "channels", "cost"):
                yield (*path, key, _KEY)
    elif isinstance(value, list | tuple):
        for k, inner in enumerate(value):
            yield from _places(inner, (*path, k))


_KEY = object()


def _plant(value: Any, path: tuple[Any, ...], secret: str) -> Any:
    if not path:
        return secret
    if len(path) == 2 and path[1] is _KEY:
        return {(secret if key == path[0] else key): inner for key, inner in value.items()}
    if isinstance(value, dict):
        return {key: _plant(inner, path[1:], secret) if key == path[0] else inner for key, inner in value.items()}
    return [_plant(inner, path[1:], secret) if k == path[0] else inner for k, inner in enumerate(value)]


def _with_secret(episode: Episode, secret: str, draw: random.Random) -> Episode:
    raw = episode_to_json(episode, packed)
    where = draw.choice([path for path in _places(raw) if path[0] not in ("id", "task_id", "parent")])
    planted = _plant(raw, where, secret)
    root = planted["root"]
    return told_episode(planted, root, planted["turns"])


def _bytes(target: Path) -> str:
    """Everything that a file holds, compressed columns unpacked, in the ways that JSON and Python write a text."""
    paths = [p for p in target.rglob("*") if p.is_file()] if target.is_dir() else [target]
    parts = [path.read_bytes().decode("utf-8", "replace") for path in paths]
    for path in paths:
        if path.suffix == ".parquet":
            parts += [json.dumps(row, default=str) for row in pq.read_table(path).to_pylist()]
    return "\n".join(parts)


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("name", FORMATS)
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(planted=st.sampled_from(ALL), which=st.integers(0, 3), seed=st.integers(0, 2**32))
def test_no_planted_secret_survives_in_any_field(
    tmp_path: Path, name: str, planted: tuple[str, str], which: int, seed: int
) -> None:
    kind, text = planted
    group = sample_groups()[which]
    first = next((e for e in group if e.parent is None), group.episodes[0])
    spoiled = Group(group.task_id, tuple(
        _with_secret(e, f"x {text} y", random.Random(seed)) if e is first else e for e in group
    ))  # fmt: skip
    target = tmp_path / "export"
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    told = export([spoiled], target, name, redact=redactor())
    secret = SECRETS.get(text, text)
    written = _bytes(target)
    for form in (secret, json.dumps(secret)[1:-1], json.dumps(json.dumps(secret)[1:-1])[1:-1]):
        assert form not in written
    assert kind in dict(told.redacted)
    assert secret not in json.dumps(told.to_json(), ensure_ascii=False)
    for _ in read_groups(target, name):
        pass


def test_the_names_of_tasks_episodes_and_groups_stay_linked(tmp_path: Path) -> None:
    tree = sample_groups()[1]
    renamed = Group("for-/home/ada", tuple(
        Episode(f"{e.id} ghp_{_A40}", "for-/home/ada", e.root, e.turns, e.seed, e.stop,
                parent=None if e.parent is None else ForkPoint(f"{e.parent.episode} ghp_{_A40}", e.parent.turn))
        for e in tree if e.id != "t/c"
    ))  # fmt: skip
    export([renamed], tmp_path / "a", "chat", redact=redactor())
    (back,) = read_groups(tmp_path / "a", "chat")
    assert back.task_id == "for-[redacted:home:1]"
    assert [e.id for e in back] == [f"{e.id} [redacted:api-key:1]" for e in tree if e.id != "t/c"]


def _turn(said: str, heard: str, at: int, segment: int = 0, **more: Any) -> Turn:
    step = Step(observation=(Message(role="user", content=heard),), **more)
    arrays = (np.array([1, 2], np.int32), np.array([3], np.int32), np.array([-0.5], np.float32))
    return Turn("agent", (Message(role="assistant", content=said),), step, *arrays, segment=segment, position=at)


def _kept(group: Group) -> list[list[int]]:
    return [[len(turn.sampled_ids) for turn in episode.turns] for episode in group]


KEY = "ghp_" + _A40


@pytest.mark.parametrize(
    ("root", "turns", "kept"),
    [
        ("hi", [("a", "b"), ("c", "d"), ("e", "f")], [1, 1, 1]),
        (KEY, [("a", "b"), ("c", "d"), ("e", "f")], [0, 0, 0]),
        ("hi", [(KEY, "b"), ("c", "d"), ("e", "f")], [0, 0, 0]),
        ("hi", [("a", KEY), ("c", "d"), ("e", "f")], [1, 0, 0]),
        ("hi", [("a", "b"), ("c", "d"), ("e", KEY)], [1, 1, 1]),
    ],
)
def test_tokens_that_spell_a_secret_go_with_all_that_stands_on_them(
    root: str, turns: list[tuple[str, str]], kept: list[int]
) -> None:
    made = tuple(_turn(said, heard, 3 * k) for k, (said, heard) in enumerate(turns))
    start = Step(observation=(Message(role="user", content=root),))
    clean = redactor()
    done = clean.group(Group("t", (Episode("e", "t", start, made, 0, StopReason.GOAL),)))
    assert _kept(done) == [kept]
    lost = kept.count(0)
    assert dict((field, times) for field, times, _ in clean.unspelled).get("turns[].sampled_ids", 0) == lost


def test_tokens_of_a_text_that_no_message_holds_go_and_the_report_says_so(tmp_path: Path) -> None:
    hidden = (("template", 1), ("system", 1))
    turns = (_turn("a", "b", 0), replace(_turn("c", "d", 3), roles=hidden), _turn("e", "f", 6))
    system = (Message(role="system", content="be kind"), turns[1].messages[0])
    start = Step(observation=(Message(role="user", content="hi"),))
    open_turns = (turns[0], replace(turns[1], messages=system), turns[2])
    whole = Episode("e", "t", start, turns, 0, StopReason.GOAL)
    fork = Episode("f", "t", Step(), (_turn("x", "y", 6),), 0, StopReason.GOAL, parent=ForkPoint("e", 2))
    clean = redactor()
    assert _kept(clean.group(Group("t", (whole, fork)))) == [[1, 0, 0], [0]]
    assert not clean.unspelled
    assert dict((field, times) for field, times, _ in clean.untold)["turns[].sampled_ids"] == 3
    told = export([Group("t", (whole,))], tmp_path / "a", "verifiers", redact=redactor())
    assert "not in the episode" in {one.field: one.why for one in told.dropped}["turns[].prompt_ids"]
    kept = replace(whole, turns=open_turns)
    assert _kept(redactor().group(Group("t", (kept,)))) == [[1, 1, 1]]


def test_a_new_context_may_show_again_what_was_told_before() -> None:
    first = replace(_turn("a", "b", 0), roles=(("template", 1), ("user", 1)))
    again = replace(_turn("c", "d", 0, segment=1), roles=(("user", 1), ("user", 1)))
    more = replace(_turn("c", "d", 0, segment=1), roles=(("user", 1), ("system", 1)))
    start = Step(observation=(Message(role="user", content="hi"),))
    for turns, kept in (((first, again), [1, 1]), ((first, more), [1, 0])):
        done = redactor().group(Group("t", (Episode("e", "t", start, turns, 0, StopReason.GOAL),)))
        assert _kept(done) == [kept]


def test_a_secret_in_the_declared_tools_costs_the_tokens_that_show_them() -> None:
    root = Step(info={"tools": [{"name": "read", "description": "reads below /home/ada/data"}]})
    done = redactor().group(Group("t", (Episode("e", "t", root, (_turn("a", "b", 0),), 0, StopReason.GOAL),)))
    assert _kept(done) == [[0]]


@given(st.dictionaries(st.sampled_from(["/home/ada", "[redacted:home:1]", "[redacted:home:1] (2)", "x", KEY]),
                       st.integers()))  # fmt: skip
def test_no_entry_is_lost_when_its_key_becomes_anothers(value: dict[str, int]) -> None:
    found = redactor().value(value)
    assert list(found.values()) == list(value.values())
    assert not {"/home/ada", KEY} & found.keys()
    assert redactor().value(found) == found


def test_a_path_in_the_info_costs_no_tokens() -> None:
    turns = (_turn("a", "b", 0, info={"cwd": "/home/ada"}), _turn("c", "d", 3))
    done = redactor().group(Group("t", (Episode("e", "t", Step(), turns, 0, StopReason.GOAL),)))
    assert _kept(done) == [[1, 1]]
    assert done.episodes[0].turns[0].step.info == {"cwd": "[redacted:home:1]"}


def test_forks_lose_the_tokens_that_stand_on_their_parents_secret() -> None:
    trunk = (_turn("a", "b", 0), _turn("c", KEY, 3), _turn("e", "f", 6))
    whole = Episode("t", "t", Step(), trunk, 0, StopReason.GOAL)
    late = Episode("late", "t", Step(), (_turn("x", "y", 6),), 0, StopReason.GOAL, parent=ForkPoint("t", 2))
    early = Episode("early", "t", Step(), (_turn("x", "y", 3),), 0, StopReason.GOAL, parent=ForkPoint("t", 1, 1))
    later = Episode("later", "t", Step(), (_turn("x", "y", 9),), 0, StopReason.GOAL, parent=ForkPoint("late", 3))
    within = Episode("in", "t", Step(), (_turn("x", "y", 6),), 0, StopReason.GOAL, parent=ForkPoint("t", 2, 1))
    group = Group("t", (whole, late, early, later, within))
    done = redactor().group(group)
    assert _kept(done) == [[1, 1, 0], [0], [1], [0], [0]]
    assert [e.parent.token for e in done if e.parent] == [0, 1, 0, 0]


def test_what_was_dropped_with_the_secret_is_told(tmp_path: Path) -> None:
    step = Step(observation=(Message(role="user", content=f"use {KEY}"),))
    group = Group("t", (Episode("e", "t", step, (_turn("ok", "fine", 0),), 0, StopReason.GOAL),))
    told = export([group], tmp_path / "a", "verifiers", redact=redactor())
    named = {one.field: one for one in told.dropped}
    assert named["turns[].sampled_ids"].times == 1
    assert "spelled" in named["turns[].sampled_ids"].why
    assert told.redacted == (("api-key", 1),)


def test_redaction_is_the_default_and_can_be_switched_off(tmp_path: Path) -> None:
    step = Step(observation=(Message(role="user", content=f"use {KEY}"),))
    group = Group("t", (Episode("e", "t", step, (), 0, StopReason.GOAL),))
    export([group], tmp_path / "a", "chat")
    assert KEY not in (tmp_path / "a").read_text()
    assert export([group], tmp_path / "b", "chat", redact=False).redacted == ()
    assert KEY in (tmp_path / "b").read_text()


def test_the_data_card_is_redacted_too(tmp_path: Path) -> None:
    card = Card(name="x", description=f"Made in /home/ada with {KEY}")
    export(sample_groups(), tmp_path / "a", "datasets", options=Options(card=card), redact=redactor())
    text = (tmp_path / "a" / "README.md").read_text()
    assert KEY not in text
    assert "/home/ada" not in text


def test_names_that_many_machines_have_are_no_secrets() -> None:
    here = Host.here()
    assert not {"root", "localhost", "ubuntu"} & {*here.users, *here.names}
    assert "/root" not in here.homes


def test_directories_of_this_host_are_found_and_the_rest_of_a_path_stays(
    tmp_path: Path,
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    with contextlib.chdir(tmp_path):
        clean = Redactor(host=Host.here().knowing(str(made), "/data/lab7"), environment={})
    paths = (
        f"{tmp_path}/src/a.py",
        f"{made}/x",
        "/data/lab7/runs",
        "/run/user/1000/bus",
        "/tmp/tmpab3_x9zq/kept.txt",
    )
    for path in paths:
        for text in (path, f"-I{path}", f'File "{path}", line 3', f"file://{path}:2"):
            found = clean.text(text)
            assert "[redacted:" in found
            assert path not in found
            assert found.count("/" + path.rpartition("/")[2]) == 1, "what is below is kept"
    assert clean.text("/data/lab77 /data/lab7-b /data") == "/data/lab77 /data/lab7-b /data"
    for wrong in ("/", "relative", ""):
        with pytest.raises(ValueError, match="it must be absolute, and not / itself"):
            Host.here().knowing(wrong)


def test_what_is_in_the_directories_for_temporary_files_is_this_hosts(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="labelled-", dir="/tmp") as place:
        clean = Redactor(host=Host.here(), environment={})
        assert clean.text(f"in {place}/f") == "in [redacted:host-path:1]/f"


@given(
    st.lists(
        st.sampled_from(
            [
                *("/work", "/usr/lib/python3", "/etc/passwd", "/home/agent", "/mnt/python/bin", "/opt/pkg", "/app"),
                *("/tmp/answer-of-mine.py", "/testbed/src", "/proc/1/fd", " ", "\n", ":", "a.py", "$PATH", "-I"),
            ]
        )
        | st.text("abcxyz/._- ", max_size=6),
        max_size=8,
    ).map("".join)
)
def test_a_text_without_paths_of_this_host_is_untouched(text: str) -> None:
    host = Host.here()
    known = (*host.homes, *host.users, *host.names, *host.places)
    assume(not any(one in text for one in known))
    assert Redactor(host=host, environment={}).text(text) == text


def test_what_worlds_have_is_no_place_of_this_host() -> None:
    for place in ("/", "/usr", "/usr/lib", "/tmp", "/var", "/home"):
        with contextlib.chdir(place):
            assert place not in Host.here().places
