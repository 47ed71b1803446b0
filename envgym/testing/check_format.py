"""The contract of a format, executable: run any `Format` through it in three lines.

Lossless where it can be and loud where it cannot, a fixed point, one group in memory at a time, one clear error for
a bad file. The groups it is tried with hold everything that a model and a world can produce.
"""

import gc
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from envgym.env import Grade, Snapshot, Step, StopReason
from envgym.episode import Episode, ForkPoint, Group, Turn
from envgym.errors import Boundary, Failure
from envgym.formats import Format, FormatError, Options, export
from envgym.formats.contract import Exported
from envgym.formats.losses import Losses
from envgym.messages import Action, ImagePart, Message, ParseError, TextPart, ToolCall
from envgym.policy import VersionRun
from envgym.sandbox import SandboxSnapshot

__all__ = ["check_format", "check_loss_is_told", "sample_groups"]

_NAMED_BY_READERS = {"id", "task_id", "root.info"}
"""What a reader makes up of the file's name, and where it puts what it has no place for."""
_STRANGE = "a\0b\ud800c\x1b[31m\u2028d\r\n\u00e9\U0001f600"
_MANY = 40
_EVERY = 10  # to look at all that lives takes long in a process that holds much


def sample_groups() -> list[Group]:
    """Groups with everything: forks of forks, tokens in segments, images, failures, strange text, exact floats."""
    return [_plain(), _tree(), _strange(), _broken()]


def _nothing() -> list[Group]:
    """An episode that ended before it began, alone, and a group of none."""
    nothing = Episode("nothing", "task-nothing", Step(), (), 1, StopReason.GAVE_UP)
    return [Group("task-nothing", (nothing,)), Group("task-none", ())]


def _say(text: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls)


def _plain() -> Group:
    """What most episodes are: a tool is called, its result is answered."""
    call = ToolCall(name="run", arguments={"command": "ls -l", "timeout": 2.5}, id="call-1")
    root = Step(
        observation=(Message(role="system", content="Be brief."), Message(role="user", content="List the files.")),
        state_key="k0",
    )
    seen = Message(role="tool", content="a.py\nb.py", tool_call_id="call-1")
    first = Step(observation=(seen,), reward=0.0, channels={"tests": 0.25}, state_key="k1", cost={"seconds": 0.5})
    last = Step(reward=1.0, stop=StopReason.SUBMITTED, submission="a.py b.py", info={"passed": [1, 2], "of": None})
    roles = (("template", 1), ("system", 1), ("user", 1))
    turns = (
        replace(_sampled(Turn("agent", (_say("Looking.", call),), first), [1, 2, 3], [4, 5], 0, 0), roles=roles),
        _sampled(Turn("agent", (_say("a.py and b.py"),), last), [6], [7, 8, 9], 0, 5),
    )
    grade = Grade(grader="tests", version="3", channels={"reward": 1.0, "style": -0.5})
    told = (("environment", "files"), ("policy", "tiny-7"), ("envgym", "0.1.0"))
    episodes = [
        Episode(
            f"plain-{k}", "task-plain", root, turns, 7 + k, StopReason.SUBMITTED, grades=(grade,), group="step-3",
            provenance=told, wall_s=1.5,
        )
        for k in range(2)
    ]  # fmt: skip
    return Group("task-plain", tuple(episodes))


def _sampled(turn: Turn, prompt: list[int], sampled: list[int], segment: int, position: int) -> Turn:
    return replace(
        turn,
        prompt_ids=np.array(prompt, np.int32),
        sampled_ids=np.array(sampled, np.int32),
        logprobs=np.array([-(2.0**-k) / 3 for k in sampled], np.float32),
        versions=(VersionRun(0, 11),) if sampled else (),
        segment=segment,
        position=position,
        act_s=0.125,
        step_s=1 / 3,
    )


def _tree() -> Group:
    """Forks: after whole turns, of a fork, in the middle of a turn, at the root; and a compacted context."""
    root = Step(observation=(Message(role="user", content="Guess."),))

    def turn(said: str, heard: str, at: tuple[int, int], stop: StopReason | None = None) -> Turn:
        step = Step(observation=(Message(role="user", content=heard),), reward=0.5, stop=stop)
        return _sampled(Turn("agent", (_say(said),), step), [3, 1], [4, 1, 5], *at)

    end = StopReason.TURN_LIMIT
    trunk = (turn("1", "higher", (0, 0)), turn("2", "higher", (0, 5)), turn("3", "higher", (1, 0), end))
    whole = Episode("t", "task-tree", root, trunk, 1, end)
    fork = Episode(
        "t/a", "task-tree", trunk[0].step, (turn("5", "lower", (0, 5)), turn("4", "yes", (0, 10), StopReason.GOAL)),
        2, StopReason.GOAL, parent=ForkPoint("t", 1),
    )  # fmt: skip
    again = Episode(
        "t/a/b", "task-tree", fork.turns[0].step, (turn("9", "no", (0, 10), StopReason.LOST),), 3, StopReason.LOST,
        parent=ForkPoint("t/a", 2),
    )  # fmt: skip
    within = Episode(
        "t/c", "task-tree", trunk[0].step, (turn("2!", "no", (0, 5), StopReason.LOST),), 4, StopReason.LOST,
        parent=ForkPoint("t", 1, 2),
    )  # fmt: skip
    at_root = Episode("t/d", "task-tree", root, (), 5, StopReason.GAVE_UP, parent=ForkPoint("t", 0))
    return Group("task-tree", (whole, fork, again, within, at_root))


def _strange() -> Group:
    """Text that no encoding likes, shapes that no chat has, several actors, an image, a snapshot."""
    image = ImagePart(sha256="0a" * 32, media_type="image/webp")
    odd = Message(role="user", content=(TextPart(text=_STRANGE), image, TextPart(text="")))
    call = ToolCall(name=_STRANGE, arguments={_STRANGE: [_STRANGE, 1e300, -0.0, True], "": {}}, id=_STRANGE)
    spoken = (_say(_STRANGE, call, call), Message(role="tool", content="", tool_call_id="x"))
    action = Action(message=spoken[0], error=ParseError(message=_STRANGE, text="{"))
    snapshot = Snapshot(
        restore="replay", task_id=_STRANGE, seed=2**63, state=_STRANGE, actions=(action,), digests=("d",),
        sandbox=SandboxSnapshot(id="s", backend="local", partial=True),
    )  # fmt: skip
    step = Step(
        observation=(odd, _say("quoted"), Message(role="system", content="")),
        reward=-0.0,
        channels={_STRANGE: -1.7e308, "tiny": 5e-324},
        legal=("a", _STRANGE),
        info={_STRANGE: {"deep": [[_STRANGE], {"x": float("-inf")}]}, "state": {"cwd": "/"}},
        next_actor="other",
    )
    turns = (
        Turn("other", spoken, step, snapshot=snapshot, error=action.error),
        _sampled(Turn("agent", (), Step(observation=(odd,)), allowed=(3, 4)), [], [2**31 - 1], 0, 0),
        Turn(
            "user", (Message(role="user", content=_STRANGE),), Step(stop=StopReason.TIME_LIMIT, submission=_STRANGE)
        ),
    )
    root = Step(observation=(_say("hello"), odd), info={"tools": [{"type": "function"}]})
    episode = Episode(
        _STRANGE, "task-\ud800", root, turns,
        2**63, StopReason.TIME_LIMIT, group=_STRANGE, provenance=((_STRANGE, _STRANGE),), wall_s=0.1,
    )  # fmt: skip
    return Group("task-\ud800", (episode,))


def _broken() -> Group:
    """A world that failed, and an episode that ended before it began."""
    failure = Failure(
        boundary=Boundary.GRADER,
        kind="GraderFailure",
        message=_STRANGE,
        where="grade",
        turn=1,
        trace="line 1\nline 2",
    )
    root = Step(observation=(Message(role="user", content="?"),))
    said = Turn("agent", (_say(""),), Step())
    lost = Episode("broken", "task-broken", root, (said,), 0, failure=failure)
    return Group("task-broken", (lost, Episode("empty", "task-broken", Step(), (), 0, StopReason.TIME_LIMIT)))


def check_format(form: Format, *, groups: Sequence[Group] | None = None, options: Options | None = None) -> None:
    """Run a format through the whole contract. Raises AssertionError with the sentence that it breaks.

    groups: what to try it with, by default `sample_groups`; forks and their parents are in one group.
    """
    tried = list(groups) if groups is not None else [*_nothing(), *sample_groups()]
    options = options or Options()
    assert isinstance(form, Format), f"a format has name, write and read; it is {form!r}"
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        _check_round(form, tried, place / "round", options)
        _check_round(form, tried, place / "bare", replace(options, extra=False))
        _check_targets(form, tried, place, options)
        _check_memory(form, place, options)
        _check_bad_files(form, tried, place, options)


def _write(form: Format, groups: Iterable[Group], target: Path, options: Options) -> Exported:
    return export(groups, target, form, options=options, redact=False)


def check_loss_is_told(before: Group, after: Iterable[Group], told: Exported) -> None:
    """Check that everything of a group which did not come back is in the list of what was dropped."""
    losses = Losses()
    losses.compare(before, [episode for group in after for episode in group])
    named = {one.field for one in told.dropped}
    silent = [one for one in losses.all if one.field not in named]
    assert not silent, f"what does not come back is listed as dropped; silent: {silent[:3]}"


def _check_round(form: Format, groups: list[Group], place: Path, options: Options) -> None:
    place.mkdir()
    told = _write(form, groups, place / "one", options)
    assert told.format == form.name, f"the answer names its format: {told.format!r}, not {form.name!r}"
    counts = (len(groups), sum(map(len, groups)), sum(len(e.turns) for g in groups for e in g))
    assert (told.groups, told.episodes, told.turns) == counts, f"the answer counts what was given: {told}"
    after = list(form.read(place / "one"))
    for k, group in enumerate(groups):
        alone = _write(form, [group], place / f"alone-{k}", options)
        check_loss_is_told(group, form.read(place / f"alone-{k}"), alone)
        _check_again(form, alone, place / f"again-{k}", options)
    first = "one"
    if told.dropped and not options.extra:  # what stands there and is not read back is gone from here on
        first = "zero"
        _write(form, after, place / first, options)
        after = list(form.read(place / first))
    _write(form, after, place / "two", options)
    one, two = _bytes(place / first), _bytes(place / "two")
    changed = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    what = "export, import, export" if first == "one" else "after one import, export, import, export"
    assert not changed, f"{what} gives the same bytes (extra={options.extra}); not in {changed[:3]}"


def _check_again(form: Format, first: Exported, place: Path, options: Options) -> None:
    """What was read from an export loses nothing by a second one that was not lost by the first."""
    read = list(form.read(first.target))
    second = _write(form, read, place, options)
    for k, group in enumerate(read):
        alone = place.with_name(f"{place.name}-{k}")
        told = _write(form, [group], alone, options)
        check_loss_is_told(group, form.read(alone), told)
    known = {one.field for one in first.dropped} | _NAMED_BY_READERS
    more = [one for one in second.dropped if one.field not in known]
    assert not more, f"what one export keeps, the next one does (extra={options.extra}); it lost {more[:3]}"


def _bytes(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}


def _check_targets(form: Format, groups: list[Group], place: Path, options: Options) -> None:
    """What is there stays, and what fails leaves nothing behind."""
    taken = place / "taken"
    taken.write_bytes(b"mine")
    refused = ""
    try:
        _write(form, groups, taken, options)
    except FileExistsError as error:
        refused = str(error)
    assert str(taken) in refused, f"a target that exists is refused with FileExistsError and its name: {refused!r}"
    assert taken.read_bytes() == b"mine", "a target that exists stays as it was"

    def failing() -> Iterator[Group]:
        yield groups[-1]
        raise KeyError("the source broke")

    before = set(place.iterdir())
    try:
        _write(form, failing(), place / "half", options)
    except KeyError:
        pass
    else:
        raise AssertionError("a source's error ends the export")
    left = {path.name for path in set(place.iterdir()) - before}
    assert not left, f"an export that fails leaves nothing behind: {left}"


def _check_memory(form: Format, place: Path, options: Options) -> None:
    """One group at a time, both ways, and an iterator that begins before it has read everything."""
    base = _alive()
    most = [0, 0]

    def made() -> Iterator[Group]:
        for k in range(_MANY):
            step = Step(observation=(Message(role="user", content=f"{k}"),), stop=StopReason.GOAL)
            yield Group("t", (Episode(f"e{k}", "t", Step(), (Turn("agent", (_say("y"),), step),), k, step.stop),))
            if k % _EVERY == _EVERY - 1:
                most[0] = max(most[0], _alive() - base)

    _write(form, made(), place / "many", options)
    seen = 0
    for group in form.read(place / "many"):
        seen += len(group)
        if seen % _EVERY == 0:
            most[1] = max(most[1], _alive() - base)
    assert seen == _MANY, f"every episode that was written is read: {seen} of {_MANY}"
    for what, count in zip(("writes", "reads"), most, strict=True):
        assert count <= 8, (
            f"a format holds one group at a time while it {what}; it held {count} of {_MANY} episodes"
        )


def _alive() -> int:
    """How many episodes there are in this process."""
    gc.collect(0)
    return sum(type(one) is Episode for one in gc.get_objects())


def _check_bad_files(form: Format, groups: list[Group], place: Path, options: Options) -> None:
    """Damage is one clear error that names the file, or leaves only whole groups."""
    _write(form, groups, place / "good", options)
    files = [name for name in _bytes(place / "good") if not name.endswith(".md")]
    for name in files[:4]:
        for how, damage in _DAMAGE.items():
            bad = place / "bad"
            _copy(place / "good", bad)
            path = bad / name if name else bad
            path.write_bytes(damage(path.read_bytes()))
            try:
                found = list(form.read(bad))
            except FormatError as error:
                said = str(error)
                assert str(bad) in said, f"an error of a bad file ({how}) names the file: {said}"
                assert "\n" not in said, f"an error of a bad file ({how}) is one line: {said}"
            except Exception as error:
                raise AssertionError(
                    f"a bad file ({how}) raises FormatError, not {type(error).__name__}: {error}"
                ) from error
            else:
                assert all(isinstance(group, Group) for group in found), (
                    f"a bad file ({how}) gives groups or an error"
                )
            _remove(bad)


_DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut in half": lambda data: data[: len(data) // 2],
    "no text": lambda data: b"\xff\xfe\x00" + data[3:],
    "another thing": lambda data: b"[1, 2, 3]\n",
    "a wrong record": lambda data: b'{"messages": 3, "conversations": [{"from": 1}], "steps": [], "nodes": {}}\n',
    "nested deeply": lambda data: b"[" * 100_000,
    "empty object": lambda data: b"{}\n",
}


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
