"""`search`: questions over a corpus that can only be searched; an answer may take several documents.

Documents are drawn: persons, firms, towns and books that refer to each other, so that a question of two or
three hops needs one search after another; or the corpus is your own, as JSON lines. Retrieval is BM25, or vectors
that are computed from the corpus (`envgym_environments.tool.retrieval`).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from pydantic import JsonValue

from envgym.env import Step, StopReason
from envgym.messages import Action, ToolCall
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import tool_spec
from envgym_environments import words
from envgym_environments.experts import expert_of
from envgym_environments.lines import read_lines
from envgym_environments.played import Answer, Rules, draws, lazy_tasks, played
from envgym_environments.tool.retrieval import Corpus
from envgym_environments.words import pick, some

__all__ = ["SPEC", "Corpus", "Search", "SearchState", "expert", "search_tasks"]


def search(query: str) -> None:
    """Search the corpus; shows the beginnings of the best documents."""


def read(title: str) -> None:
    """Show a whole document by its title."""


def answer(value: str) -> None:
    """Give the answer. This ends the episode."""


@dataclass(slots=True)
class SearchState:
    """left: searches that are left. read: titles that were read."""

    left: int
    read: list[str] = field(default_factory=list)


class Search(Rules[SearchState]):
    """Rules of `search`. Reward 1.0 for the right answer.

    searches: that there may be. shown: documents of each. retrieval: "bm25", or "lsa" for vectors.
    """

    tools = (tool_spec(search), tool_spec(read), tool_spec(answer))
    state = SearchState
    uses_seed = False

    def __init__(self, task: Task, *, searches: int = 12, shown: int = 5, retrieval: str = "bm25") -> None:
        if searches < 1 or shown < 1:
            raise ValueError(f"searches is {searches} and shown {shown}; they must be at least 1")
        self.task, self._searches, self._shown = task, searches, shown
        data = task.metadata
        self._corpus = (
            _stored(str(data["corpus"]), retrieval)
            if "corpus" in data
            else _indexed(int(str(data["world"])), retrieval)
        )

    def begin(self, seed: int) -> tuple[SearchState, str]:
        """The question."""
        return SearchState(self._searches), self.task.prompt

    def move(self, state: SearchState, said: ToolCall | str) -> Answer:
        """A search, a document, or the answer."""
        assert isinstance(said, ToolCall)
        text = str(next(iter(said.arguments.values())))
        if said.name == "answer":
            right = text.strip().casefold() == str(self.task.metadata["answer"]).casefold()
            reward = float(right)
            stop = StopReason.GOAL if right else StopReason.SUBMITTED
            return Answer("right" if right else "wrong", reward, stop, {"reward": reward}, submission=text)
        if said.name == "read":
            if text not in self._corpus.texts:
                return Answer(f"error: no document has the title {text[:80]!r}")
            state.read = sorted({*state.read, text})
            return Answer(self._corpus.texts[text])
        if not state.left:
            return Answer("error: no searches are left")
        state.left -= 1
        found = self._corpus.best(text[:1000], self._shown)
        lines = [f"{title}: {self._corpus.texts[title][:80]}..." for title in found]
        return Answer("\n".join(lines) or "nothing found")

    def key(self, state: SearchState) -> str:
        """Searches change nothing but how many are left."""
        return str(state.left)


@lru_cache(maxsize=4)
def _stored(path: str, retrieval: str) -> Corpus:
    def read(line: str) -> tuple[str, str]:
        raw = json.loads(line)
        return str(raw["title"]), str(raw["text"])

    documents = read_lines(path, read, what="document with title and text as JSON")
    return Corpus(documents, retrieval=retrieval)


@lru_cache(maxsize=16)
def _indexed(world: int, retrieval: str) -> Corpus:
    return Corpus(list(_drawn(world)[0].items()), retrieval=retrieval)


@lru_cache(maxsize=16)
def _drawn(world: int) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Some 300 documents, title -> text, and the facts in them: title -> relation -> value."""
    rng = draws(world, 0x5EA)
    towns = some(rng, sorted({words.town(rng) for _ in range(200)}), 25)
    persons, firms = (sorted({draw(rng) for _ in range(120)}) for draw in (words.person, words.company))
    books = sorted({words.title(rng) for _ in range(90)})
    facts: dict[str, dict[str, str]] = {}
    texts: list[tuple[str, str]] = []
    for name in persons:
        facts[name] = {
            "born": pick(rng, towns),
            "works": pick(rng, firms),
            "year": str(int(rng.integers(1940, 2003))),
        }
        one = facts[name]
        job = pick(rng, ("an engineer", "a lawyer", "a designer", "an analyst", "a chemist"))
        texts.append(
            (
                name,
                f"{name} is {job}, born in {one['born']} in {one['year']}. "
                f"Since {int(rng.integers(2004, 2024))} {name} has worked at {one['works']}.",
            )
        )
    for name in firms:
        facts[name] = {"founder": pick(rng, persons), "seat": pick(rng, towns)}
        one = facts[name]
        texts.append(
            (
                name,
                f"{name} is a firm of {int(rng.integers(10, 9000))} people. Its seat is in {one['seat']}. "
                f"It was founded by {one['founder']} in {int(rng.integers(1960, 2020))}.",
            )
        )
    for name in books:
        facts[name] = {"author": pick(rng, persons)}
        kind = pick(rng, ("a novel", "a history", "a book of poems", "a memoir"))
        texts.append((name, f"{name} is {kind} of {int(rng.integers(90, 900))} pages by {facts[name]['author']}."))
    for name in towns:
        facts[name] = {"river": f"the {pick(rng, words.NOUNS)}"}
        texts.append(
            (name, f"{name} is a town of {int(rng.integers(8, 900))} thousand people on {facts[name]['river']}.")
        )
    return dict(texts), facts


_HOPS: dict[str, tuple[str, ...]] = {
    "In which town is the seat of {}?": ("firm", "seat"),
    "Who wrote {}?": ("book", "author"),
    "Who founded {}?": ("firm", "founder"),
    "At which firm does {} work?": ("person", "works"),
    "In which town was {} born?": ("person", "born"),
    "In which year was {} born?": ("person", "year"),
    "On which river is {}?": ("town", "river"),
    "In which year was the founder of {} born?": ("firm", "founder", "year"),
    "In which town was the author of {} born?": ("book", "author", "born"),
    "At which firm does the author of {} work?": ("book", "author", "works"),
    "In which year was the author of {} born?": ("book", "author", "year"),
    "In which town was the founder of {} born?": ("firm", "founder", "born"),
    "In which town is the seat of the firm at which {} works?": ("person", "works", "seat"),
    "On which river is the town in which {} has its seat?": ("firm", "seat", "river"),
    "On which river is the town in which {} was born?": ("person", "born", "river"),
    "Who founded the firm at which {} works?": ("person", "works", "founder"),
    "In which town is the seat of the firm at which the author of {} works?": ("book", "author", "works", "seat"),
    "In which town was the founder of the firm at which {} works born?": ("person", "works", "founder", "born"),
    "On which river is the town in which the author of {} was born?": ("book", "author", "born", "river"),
    "On which river is the town in which the founder of {} was born?": ("firm", "founder", "born", "river"),
    "Who founded the firm at which the author of {} works?": ("book", "author", "works", "founder"),
    "In which year was the founder of the firm at which {} works born?": ("person", "works", "founder", "year"),
    "At which firm does the founder of the firm at which {} works work?": ("person", "works", "founder", "works"),
}


def search_tasks(
    count: int | None = 500,
    *,
    hops: int | None = None,
    seed: int = 0,
    corpus: str | None = None,
    questions: str | None = None,
) -> TaskSet:
    """`count` questions (None: without end), fifty to a drawn corpus; held-out questions have corpora of their own.

    hops: 1 to 3; None takes all in turn. corpus, questions: your own, as JSON lines: objects with "title" and
    "text", and with "question", "answer" and, if you like, "split" and "path", the titles that lead to the answer,
    which the expert reads. Raises ValueError for bounds that make none, where only one of the two files is named,
    and for a path that is no list of titles.
    """
    if (corpus is None) != (questions is None):
        raise ValueError(f"corpus is {corpus!r} and questions {questions!r}; name both files, or none")
    if corpus is not None and questions is not None:
        asked = read_lines(questions, _question, what="question with answer as JSON")
        return TaskSet([_own(index, one, corpus) for index, one in enumerate(asked)])
    if hops is not None and not 1 <= hops <= 3:
        raise ValueError(f"hops is {hops}; it must be 1 to 3, or None for all in turn")
    return lazy_tasks(lambda index, split: _task(index, split, hops, seed), count)


def _question(line: str) -> dict[str, JsonValue]:
    raw = json.loads(line)
    path = raw.get("path", [])
    if not isinstance(path, list) or not all(isinstance(title, str) for title in path):
        raise ValueError(f"path is {path!r}; it must be a list of titles")
    return {
        "question": str(raw["question"]),
        "answer": str(raw["answer"]),
        "split": str(raw.get("split", "heldout")),
        "path": path,
    }


def _own(index: int, asked: dict[str, JsonValue], corpus: str) -> Task:
    data: dict[str, JsonValue] = {
        "corpus": str(Path(corpus).absolute()),
        "answer": asked["answer"],
        "path": asked["path"],
    }
    return Task(
        id=f"search/own/{index}",
        prompt=str(asked["question"]),
        split=str(asked["split"]),
        seed=index,
        metadata=data,
    )


def _task(index: int, split: str, hops: int | None, seed: int) -> Task:
    world = 2 * (seed * 1_000_003 + index // 50) + (split == "heldout")
    facts = _drawn(world)[1]
    rng = draws(seed, index, 0x5E)
    wanted = hops or 1 + index % 3
    question = pick(rng, [one for one, chain in _HOPS.items() if len(chain) == wanted + 1])
    kind, *chain = _HOPS[question]
    has = {"firm": "seat", "book": "author", "person": "works", "town": "river"}[kind]
    subject = value = pick(rng, [title for title, known in facts.items() if has in known])
    path: list[JsonValue] = []
    for relation in chain:
        path.append(value)
        value = facts[value][relation]
    data: dict[str, JsonValue] = {"world": world, "hops": wanted, "answer": value, "path": path}
    return Task(
        id=f"search/{seed}/{wanted}/{index}",
        prompt=question.format(subject),
        split=split,
        seed=index,
        metadata=data,
    )


_FACTS = {
    "born": r"born in (.+) in \d{4}\.",
    "year": r"born in .+ in (\d{4})\.",
    "works": r"has worked at (.+)\.",
    "founder": r"was founded by (.+) in \d{4}\.",
    "seat": r"Its seat is in (.+)\. It was",
    "author": r"pages by (.+)\.",
    "river": r"thousand people on (.+)\.",
}
"""How a document of a drawn corpus tells a relation."""


def _asked(question: str) -> tuple[str, list[str]]:
    """Whom a question begins with, and the relations that lead from there to its answer."""
    shapes = ((re.escape(one).replace(r"\{\}", "(.+)"), chain) for one, (_, *chain) in _HOPS.items())
    found = [(match[1], chain) for shape, chain in shapes if (match := re.fullmatch(shape, question))]
    return max(found, key=lambda one: len(one[1]))  # "the seat of the firm of X" is a seat of something, too


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """Search for each document on the way, read it, and go on with what it says.

    In a corpus of one's own it knows no way of telling things: there it reads path and answer in the task.
    """
    if "corpus" in task.metadata:
        return _told(task, len(seen) - 1)
    title, chain = _asked(task.prompt)
    for relation, shown in zip(chain, seen[2::2], strict=False):  # what it read; between them what it found
        title = re.findall(_FACTS[relation], shown.text)[0]
    done = len(seen) - 1
    if done >= 2 * len(chain):
        return Action.call("answer", value=title)
    return Action.call("read", title=title) if done % 2 else Action.call("search", query=title)


def _told(task: Task, done: int) -> Action:
    """Search for and read what the task's path names; where it names none, search by the question."""
    path = task.metadata["path"]
    assert isinstance(path, list)
    if not path and not done:
        return Action.call("search", query=task.prompt)
    if done >= 2 * len(path):
        return Action.call("answer", value=str(task.metadata["answer"]))
    title = str(path[done // 2])
    return Action.call("read", title=title) if done % 2 else Action.call("search", query=title)


expert = expert_of(_decide)

SPEC = EnvSpec(
    name="search",
    tasks=search_tasks,
    make=played(Search),
    description="Questions of one to three hops over a corpus that can only be searched (BM25 or vectors).",
    in_process=True,
)
