"""`wordle`: find a word of five letters in six guesses, each answered letter by letter.

The word is drawn from the episode's seed among those of the task's split: words of held-out tasks are never the
secret of a training task. Any word of the list may be guessed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

from envgym.env import Step, StopReason
from envgym.messages import Action, ToolCall
from envgym.registry import EnvSpec
from envgym.task import Task, TaskSet
from envgym.tools import tool_spec
from envgym_environments.experts import expert_of
from envgym_environments.played import Answer, Rules, draws, lazy_tasks, played
from envgym_environments.words import pick

__all__ = ["SPEC", "WORDS", "Wordle", "WordleState", "expert", "marks", "wordle_tasks"]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WORDS = _listed(
    """
    about abuse actor adapt adult after again agent agree ahead alarm album alert alien alive allow alone
    alter amber angel anger angle ankle apart apple apply arena argue arise armor array aside asset audio
    avoid award aware awful bacon badge baker basic basin beach beard beast begin being below bench berry
    bible birth black blade blame blank blast blaze blend blind block blood board boast bonus boost booth
    bound brain brake brand brave bread break breed brick bride brief bring broad brook brown brush build
    bunch burst cabin cable camel candy canoe cargo carry carve catch cause cedar chain chair chalk charm
    chart chase cheap check cheek cheer chess chest chief child chill choir claim clash class clean clear
    clerk cliff climb clock close cloth cloud coach coast color comet coral couch count court cover crack
    craft crane crash cream creek crime crisp cross crowd crown crust curve cycle daily dairy dance delay
    depth diary dodge doubt dozen draft drain drama dream dress drift drill drink drive eager eagle early
    earth eight elbow elder empty enemy enjoy enter equal error event exact exist extra fable faint faith
    false fancy feast fence ferry fever fiber field fight final flame flash fleet floor flour fluid focus
    force forge found frame fresh front frost fruit ghost giant glass globe glory glove grace grade grain
    grand grant grape grass gravy great green greet grief group guard guess guest guide habit happy harsh
    haste heart heavy hedge hello honey horse hotel house human humor ideal image index inner input ivory
    jelly jewel joint judge juice kneel knife known label labor large laser later laugh layer learn lemon
    level light limit linen local logic loose lower loyal lucky lunch magic major maple march match mayor
    medal melon mercy merit metal meter minor mixed model money month moral motor mount mouse mouth movie
    music naval nerve never noble noise north novel nurse ocean offer often olive onion opera orbit order
    organ other outer owner paint panel paper party pasta patch peace pearl phase phone piano piece pilot
    pitch place plain plane plant plate point polar porch pound power press price pride prime print prize
    proof proud pulse queen quick quiet quilt radio raise ranch range rapid ratio reach ready realm rebel
    refer reply rider ridge right rival river roast robot rocky round route royal rural salad sauce scale
    scene scent scope score scout sense serve seven shade shake shape share sharp sheep sheet shelf shell
    shine shirt shock shore short shout sight skill skirt sleep slice slide smart smile smoke snake solar
    solid solve sound south space spare spark speak speed spell spice spine spoon sport spray staff stage
    stair stamp stand start state steam steel stick still stone store storm story stove straw strip study
    style sugar sunny sweet swift sword table taste teach thank theme thick thing think thorn three throw
    thumb tiger tight title toast today token topic torch total touch tough tower track trade trail train
    treat trend trial tribe trick truck trust truth twice uncle under union unity upper urban usage usual
    vague valid value vapor video virus visit vital vivid voice wagon waist waste watch water weave whale
    wheat wheel white whole width woman world worry wound wrist write wrong yacht yield young youth zebra
    """
)


def guess(word: str) -> None:
    """Guess a word of five letters. G: right; y: elsewhere in the word; -: not (or not again) in it."""


@dataclass(slots=True)
class WordleState:
    """secret: the word. guesses: those that were made, in order."""

    secret: str
    guesses: list[str] = field(default_factory=list)


@lru_cache(maxsize=1 << 16)
def marks(secret: str, word: str) -> str:
    """G, y or - for each letter; a letter is marked as often as the secret has it, right places first."""
    left = Counter(one for one, other in zip(secret, word, strict=True) if one != other)
    found = []
    for one, other in zip(secret, word, strict=True):
        if one == other:
            found.append("G")
        elif left[other]:
            left[other] -= 1
            found.append("y")
        else:
            found.append("-")
    return "".join(found)


class Wordle(Rules[WordleState]):
    """Rules of `wordle`. Reward 1.0 for the word (GOAL), 0.0 without tries left (LOST)."""

    tools = (tool_spec(guess),)
    state = WordleState
    uses_seed = True

    def __init__(self, task: Task) -> None:
        self.task, self._tries = task, int(str(task.metadata["tries"]))

    def begin(self, seed: int) -> tuple[WordleState, str]:
        """A word."""
        return WordleState(pick(draws(seed, self.task.seed, 0x30), _secrets(self.task.split))), self.task.prompt

    def move(self, state: WordleState, said: ToolCall | str) -> Answer:
        """One guess; what is no word of the list costs nothing."""
        assert isinstance(said, ToolCall)
        word = str(said.arguments["word"]).strip().lower()
        if word not in WORDS:
            return Answer("error: not a word of the list")
        state.guesses.append(word)
        seen = f"{word} {marks(state.secret, word)}"
        channels = {"guesses": float(len(state.guesses))}
        if word == state.secret:
            return Answer(seen, 1.0, StopReason.GOAL, channels | {"reward": 1.0})
        if len(state.guesses) >= self._tries:
            return Answer(f"{seen}; it was {state.secret}", 0.0, StopReason.LOST, channels | {"reward": 0.0})
        return Answer(f"{seen}; tries left {self._tries - len(state.guesses)}")

    def key(self, state: WordleState) -> str:
        """What the guesses told."""
        told = sorted(f"{word}{marks(state.secret, word)}" for word in state.guesses)
        return "/".join([str(len(told)), *told])  # never "", which is unknown


_NUMBERS = dict(enumerate(("two", "three", "four", "five", "six", "seven", "eight", "nine"), 2))


@cache
def _secrets(split: str) -> tuple[str, ...]:
    return tuple(word for place, word in enumerate(WORDS) if (place % 5 == 0) == (split == "heldout"))


def wordle_tasks(count: int | None = 500, *, tries: int = 6, seed: int = 0) -> TaskSet:
    """`count` games (None: without end) of so many guesses: fewer are harder.

    Raises ValueError for a count below one, and for less than one guess.
    """
    if tries < 1:
        raise ValueError(f"tries is {tries}; it must be at least 1")

    def make(index: int, split: str) -> Task:
        guesses = "one guess" if tries == 1 else f"{_NUMBERS.get(tries, str(tries))} guesses"
        prompt = f"Find the secret word of five letters in {guesses}."
        drawn = seed * 1_000_003 + index
        return Task(id=f"wordle/{tries}/{drawn}", prompt=prompt, split=split, seed=drawn, metadata={"tries": tries})

    return lazy_tasks(make, count)


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """The guess whose answers tell most of the words that are still possible, itself one of them."""
    told = [step.text.split(";")[0].split(" ") for step in seen[1:]]
    return Action.call("guess", word=_best(tuple((word, mark) for word, mark in told)))


@cache
def _best(told: tuple[tuple[str, str], ...]) -> str:
    left = [word for word in WORDS if all(marks(word, guessed) == mark for guessed, mark in told)]
    among = WORDS if 2 < len(left) <= 40 else left[:60]
    return min(
        among, key=lambda word: (max(Counter(marks(other, word) for other in left).values()), word not in left)
    )


expert = expert_of(_decide)

SPEC = EnvSpec(
    name="wordle",
    tasks=wordle_tasks,
    make=played(Wordle),
    description="Find a word of five letters in six guesses, each answered letter by letter.",
    in_process=True,
    seeded=True,
)
