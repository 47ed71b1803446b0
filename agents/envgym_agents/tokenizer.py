"""A small byte-level BPE, trained here, in which every compact action is one token.

It is written as an ordinary Hugging Face folder, so ``AutoTokenizer`` loads it unchanged. It does not know how a
conversation is laid out beyond its role tokens; see `envgym_agents.template`.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from envgym_agents.hub import SAFELY

__all__ = [
    "END", "PAD", "ROLES", "action_ids", "action_token", "load_tokenizer", "pieces_of", "plain_encoder",
    "train_tokenizer",
]  # fmt: skip

ROLES = {role: f"<|{role}|>" for role in ("system", "user", "assistant", "tool")}
END, PAD = "<|end|>", "<|pad|>"

_CHAT_TEMPLATE = (
    "{%- set actions = ACTIONS -%}"
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' -}}"
    "{%- if message['role'] == 'assistant' and message['content'] in actions -%}"
    "{{- '<|' + message['content'] + '|>' -}}"
    "{%- else -%}{{- message['content'] -}}{%- endif -%}"
    "{{- '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def action_token(action: str) -> str:
    """The token of a compact action string: ``apply 3`` is ``<|apply 3|>``."""
    return f"<|{action}|>"


def train_tokenizer(texts: Iterable[str], *, actions: Sequence[str] = (), vocab_size: int = 2000) -> Any:
    """Train a tokenizer; the same texts, actions and size give the same one.

    texts: what observations look like. actions: compact action strings, in order; they get consecutive ids.
    vocab_size counts everything: 256 bytes, role tokens, actions and merges. Returns a fast HF tokenizer whose
    ``chat_template`` is the reference of `envgym_agents.template.OwnTemplate`.
    """
    special = [PAD, END, *ROLES.values(), *(action_token(action) for action in actions)]
    if len(set(special)) != len(special):
        raise ValueError("actions hold duplicates or one named like a role: each needs a token of its own")
    least = 256 + len(special)
    if vocab_size < least:
        raise ValueError(f"vocab_size is {vocab_size}; bytes, roles and {len(actions)} actions alone need {least}")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[*ROLES.values(), *(action_token(action) for action in actions)],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE.replace("ACTIONS", repr(list(actions)))
    return tokenizer


def load_tokenizer(folder: str | Path) -> Any:
    """The tokenizer of a local model folder, ours or any other. Never asks a network.

    Raises ValueError for what is no such folder, with the model folders in it, such as those of a training run.
    """
    place = Path(folder)
    if not place.is_dir():
        raise ValueError(f"no model folder at {str(folder)!r}; give the path of a local Hugging Face folder")
    if not _has_tokenizer(place):
        inside = sorted(str(found) for found in place.iterdir() if _has_tokenizer(found))
        there = f"give one of those in it: {', '.join(inside)}" if inside else "there is no tokenizer in it"
        raise ValueError(f"{str(folder)!r} is no model folder; {there}")
    return AutoTokenizer.from_pretrained(str(folder), **SAFELY)


def _has_tokenizer(folder: Path) -> bool:
    """Whether a tokenizer's files are there, or a model's configuration, which may tell of other ones.

    The folder of a training run has a `config.json` too, which is no model's.
    """
    if any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return True
    try:
        return "model_type" in json.loads((folder / "config.json").read_text())
    except (OSError, ValueError, TypeError):
        return False


def action_ids(tokenizer: Any) -> dict[str, int]:
    """Compact action string -> its token id, ascending by id; empty for a tokenizer that is not ours."""
    known = tokenizer.get_vocab()
    if not {END, PAD, *ROLES.values()} <= known.keys():
        return {}
    fixed = {END, PAD, *ROLES.values()}
    added = sorted((token.content, index) for index, token in tokenizer.added_tokens_decoder.items())
    found = {
        text[2:-2]: index
        for text, index in added
        if text not in fixed and text.startswith("<|") and text.endswith("|>")
    }
    return dict(sorted(found.items(), key=lambda item: item[1]))


def plain_encoder(tokenizer: Any) -> Any:
    """The tokenizer's core, a copy, that reads special tokens' names as plain text.

    What a world shows can then never forge a role or an action.
    """
    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    core.encode_special_tokens = True
    core.no_padding()
    core.no_truncation()
    return core


def pieces_of(path: Path) -> Callable[[Sequence[int]], list[str]]:
    """How the tokenizer of a model's folder spells ids: one text for each, which make up the text of all.

    Raises ValueError where there is no tokenizer.json.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(
            f"--tokenizer {path} holds no tokenizer.json; name the folder of the model that was judged"
        )
    known = Tokenizer.from_file(str(file))

    def pieces(ids: Sequence[int]) -> list[str]:
        whole = [known.decode(list(ids[:k]), skip_special_tokens=False) for k in range(len(ids) + 1)]
        # a character of several tokens is whole with the last of them
        whole = [text.rstrip("\ufffd") if k < len(ids) else text for k, text in enumerate(whole)]
        return [after[len(before) :] for before, after in pairwise(whole)]

    return pieces
