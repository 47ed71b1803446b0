"""What TRL's trainer and our loop are compared on: one model folder, one world with a tool, and what can go wrong.

The model is tiny and was warmed up to open boxes until it is told a number, and to say that number one time in two:
both sides therefore make the same calls, and rewards differ inside groups. Nothing here knows either trainer.
"""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from envgym_agents.learn.pack import Row
from envgym_agents.learn.score import Scorer
from envgym_agents.learn.update import Learner, adamw
from envgym_agents.model import new_model, save_model
from envgym_agents.template import FolderTemplate
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from envgym import Message

__all__ = [
    "CALLS",
    "FAULTS",
    "HANG",
    "LINE",
    "PROMPT",
    "READY",
    "Plan",
    "Trouble",
    "each",
    "make_folder",
    "system_text",
    "told",
]

LINE, READY = "FOUND ", "READY"
CALLS = 4
PROMPT = "Open box after box until one of them holds a number, then say the number alone."
CALL = '<tool_call>\n{"name": "open_box", "arguments": {}}\n</tool_call>'
FAULTS = ("raises", "garbage", "huge", "exits", "broken", "no-reset", "no-verdict", "hangs")
"""What goes wrong, once, in the middle of a run: in the tool, or in the world around it.

The last one is last because who has no deadline never comes back from it.
"""
HANG = object()
"""What `Trouble.in_tool` gives where the tool shall wait and never come back."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, the same for both sides. tool_s: seconds of a call; fault: one of FAULTS, or "" for none."""

    folder: str
    tool_s: float = 0.0
    steps: int = 6
    tasks: int = 4
    group: int = 8
    tokens: int = 256
    threads: int = 1
    fault: str = ""

    @classmethod
    def read(cls, text):
        return cls(**json.loads(text))


def told(opened: int, number: int) -> str:
    """What the box says that is opened as the `opened`-th, from 1."""
    return f"it holds the number {number}" if opened == CALLS else "it is empty, open another"


class Trouble:
    """Goes wrong at the tenth time that it is asked, in the way of its name, and never again."""

    AT = 10

    def __init__(self, kind: str) -> None:
        self.kind, self.asked, self.lock = kind, 0, threading.Lock()

    def now(self) -> bool:
        with self.lock:
            self.asked += 1
            return self.asked == self.AT

    def in_tool(self) -> object | None:
        """What the tool gives in the place of its answer; None where nothing is wrong."""
        if self.kind in ("", "no-reset", "no-verdict") or not self.now():
            return None
        if self.kind == "raises":
            raise RuntimeError("the box is stuck")
        if self.kind == "exits":
            raise SystemExit("a library of the tool calls sys.exit")
        answers: dict[str, object] = {
            "garbage": os.fsdecode(b"\xff is no text"),
            "huge": "found nothing\n" * 150_000,
            "broken": _Unprintable(),
        }
        return answers.get(self.kind, HANG)

    def in_world(self, where: str) -> None:
        """Raises where the world breaks in `where`: "no-reset" or "no-verdict"."""
        if self.kind == where and self.now():
            raise OSError(f"{where}: the machine behind this world is gone")


class _Unprintable:
    def __repr__(self) -> str:
        raise ValueError("this object has no text")


def each(plans: Sequence[Plan], trained: Callable[[Plan], dict[str, object]]) -> None:
    """Say that all is imported; then run every plan and print a JSON line of what came of it, whatever ends it."""
    print(READY, flush=True)
    for plan in plans:
        try:
            found = trained(plan)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            found = {"ended": f"{type(error).__name__}: {error}"[:300].encode("ascii", "replace").decode()}
        print(LINE + json.dumps(found), flush=True)


def make_folder(folder: Path, template: str, *, size: str, updates: int) -> None:
    """A warmed-up model with a tokenizer that has `template`, a chat template with tools, as a model folder."""
    tokenizer = _tokenizer(template)
    model = new_model(len(tokenizer), size=size, context=1024)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    learner = Learner(Scorer(model), adamw(model, lr=3e-3, weight_decay=0.0), max_tokens=1 << 15)
    rng = np.random.default_rng(0)
    layout, system = FolderTemplate(tokenizer), system_text(tokenizer)
    for _ in range(updates):
        numbers = rng.integers(10, size=(4, 2)).tolist()
        rows = [_row(layout, held, held if rng.random() < 0.5 else other, system) for held, other in numbers]
        learner.imitate(rows, lr=3e-3)
    save_model(folder, model, tokenizer)


def open_box() -> str:
    """Open the next box.

    Returns:
        What it holds.
    """
    raise NotImplementedError("the worlds have their own; this one is for its schema")


def system_text(tokenizer) -> str:
    """The system message with which the chat template itself shows the tool, as TRL has it shown."""
    text = tokenizer.apply_chat_template([{"role": "user", "content": ""}], tools=[open_box], tokenize=False)
    return text.split("<|im_start|>system\n", 1)[1].split("<|im_end|>", 1)[0]


def _tokenizer(template: str) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    texts = [PROMPT, CALL, template, *(told(place, number) for place in (1, CALLS) for number in range(10))]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(texts, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )  # fmt: skip
    made.chat_template = template
    return made


def _row(layout: FolderTemplate, held: int, said: int, system: str) -> Row:
    """An episode in which the last box holds `held`, and `said` is said."""
    talk, at = layout.open(), []
    seen = [Message(role="system", content=system), Message(role="user", content=PROMPT)]
    for turn in range(CALLS + 1):
        talk.show(seen)
        begin = len(talk.ids)
        talk.said([*layout.encode(str(said) if turn == CALLS else CALL), layout.stop_ids[-1]])
        at += range(begin, len(talk.ids))
        seen = [Message(role="tool", content=told(turn + 1, held))]
    zeros = np.zeros(len(at), np.float32)
    return Row(
        f"e{held}", "t", np.array(talk.ids, np.int32), np.array(at, np.int32), zeros, zeros + 1,
        zeros + 1 / len(at), (None,) * len(at),
    )  # fmt: skip
