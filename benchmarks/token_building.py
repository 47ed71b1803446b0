"""Building the token list of one 20-turn, 10,000-token conversation, turn by turn.

Four ways over the same messages and tokenizer: the floor (ready-made headers, encode only the new text), our
template, a foreign folder's chat template with its check of every turn, and rendering and encoding everything
anew each turn as a chat client would. The bar: ours takes at most 1.3 times the floor.
"""

import argparse
import inspect
import json
import statistics
import time
from pathlib import Path

from _harness import facts
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
    medians = {name: statistics.median(found) for name, found in times.items()}
    ratio = statistics.median(a / b for a, b in zip(times["ours"], times["floor"], strict=True))
    return {
        "turns": TURNS,
        "tokens": len(built),
        "repeats": repeats,
        "median_ms": {name: round(1e3 * value, 2) for name, value in medians.items()},
        "ours_over_floor": round(ratio, 3),
        "anew_over_ours": round(medians["everything anew each turn"] / medians["ours"], 1),
        "bar": BAR,
        "passes": ratio <= BAR,
        "machine": facts(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    result = measure(7 if options.quick else 31)
    for name, value in result["median_ms"].items():
        print(f"{name:30} {value:8.2f} ms")
    print(f"{result['tokens']} tokens, {TURNS} turns; ours / floor = {result['ours_over_floor']} (bar {BAR})")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
