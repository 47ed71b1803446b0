"""Building the token list of one 20-turn, 10,000-token conversation, turn by turn.

Four ways over the same messages and tokenizer: the floor (ready-made headers, encode only the new text), our
template, a foreign folder's chat template with its check of every turn, and rendering and encoding everything
anew each turn as a chat client would. The bar: ours takes at most 1.3 times the floor.
"""

import argparse
import inspect
import statistics
import time
from pathlib import Path

from _harness import Row, finish, options
from envgym_agents.template import FolderTemplate, OwnTemplate
from envgym_agents.tokenizer import END, ROLES, plain_encoder, train_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from envgym.messages import Message

BAR = 1.3
TURNS, TOKENS = 20, 10_000
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def conversation(tokenizer):
    """(observation, sampled ids) per turn: nine tenths of the tokens are shown, one tenth is said."""
    source = "".join(inspect.getsource(module) for module in (argparse, inspect, statistics))
    per_turn = TOKENS // TURNS - 4
    ids = plain_encoder(tokenizer).encode(source).ids
    turns = []
    for turn in range(TURNS):
        piece = ids[turn * per_turn : (turn + 1) * per_turn]
        cut = per_turn * 9 // 10
        turns.append((tokenizer.decode(piece[:cut]), piece[cut:]))
    return turns


def floor(tokenizer):
    core = plain_encoder(tokenizer)
    user, assistant, end = (
        tokenizer.convert_tokens_to_ids(token) for token in (ROLES["user"], ROLES["assistant"], END)
    )

    def build(turns):
        ids = []
        for shown, said in turns:
            ids.append(user)
            ids += core.encode(shown, add_special_tokens=False).ids
            ids += (end, assistant)
            ids += said
            ids.append(end)
        return ids

    return build


def ours(template, stop):
    def build(turns):
        context = template.open()
        for shown, said in turns:
            context.offer((Message(role="user", content=shown),), 1 << 20)
            context.said([*said, stop])
        assert context.segment == 0
        return context.ids

    return build


def anew(tokenizer):
    def build(turns):
        messages, ids = [], []
        for shown, said in turns:
            messages.append({"role": "user", "content": shown})
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            ids = tokenizer.encode(text, add_special_tokens=False)
            messages.append({"role": "assistant", "content": tokenizer.decode(said)})
        return ids

    return build


def chatml(tokenizer):
    """The same vocabulary as a foreign folder would bring it."""
    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"]
    )
    made.chat_template = CHATML
    return made


def seconds(build, turns):
    started = time.perf_counter()
    build(turns)
    return time.perf_counter() - started


def measure(repeats):
    source = Path(inspect.getsourcefile(argparse)).parent
    texts = [path.read_text(errors="replace") for path in sorted(source.glob("[a-e]*.py"))]
    tokenizer = train_tokenizer(texts, vocab_size=2000)
    turns = conversation(tokenizer)
    foreign = chatml(tokenizer)
    ways = {
        "floor": floor(tokenizer),
        "ours": ours(OwnTemplate(tokenizer), tokenizer.eos_token_id),
        "ours, foreign chat template": ours(FolderTemplate(foreign), foreign.eos_token_id),
        "everything anew each turn": anew(tokenizer),
    }
    built = ways["ours"](turns)
    assert built == ways["floor"](turns)
    times = {name: [] for name in ways}
    for _ in range(repeats):  # in turns, so that a busy moment of the machine meets all of them
        for name, build in ways.items():
            times[name].append(seconds(build, turns))
    reference = statistics.median(times.pop("floor"))
    bars = {"ours": BAR}
    return [
        Row(name, 1e3 * statistics.median(found), 1e3 * reference, "floor", "ms", bars.get(name))
        for name, found in times.items()
    ], len(built)


def main():
    given = options(__doc__)
    rows, tokens = measure(7 if given.quick else 31)
    finish("token_building", rows, given, turns=TURNS, tokens=tokens)


if __name__ == "__main__":
    main()
