"""Models: a fresh small transformer from a configuration, or any Hugging Face folder or hub name.

A folder holds weights (safetensors), configuration and tokenizer together. Nothing here samples or trains.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.utils import logging

from envgym.options import hint
from envgym_agents.eyes import give_eyes
from envgym_agents.hub import SAFELY, folder_of
from envgym_agents.tokenizer import load_tokenizer

__all__ = [
    "SIZES", "Shape", "check_config", "check_device", "empty_model", "load_model", "load_weights", "max_length",
    "new_model", "parameters", "processor_of", "save_model", "sees", "shape_of", "weights_digest",
]  # fmt: skip


_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""What a folder has whose model sees: how images become its input."""
_PARTS = ("*.safetensors", "*.bin", "*.json")
"""What makes a model folder: weights, and the configuration and tokenizer they are used with."""


class Shape(NamedTuple):
    """Widths and depth of a decoder: hidden units, inner units of a feed-forward block, layers, heads."""

    hidden: int
    inner: int
    layers: int
    heads: int


SIZES: Mapping[str, Shape] = MappingProxyType(
    {
        "tiny": Shape(32, 64, 2, 2),
        "1M": Shape(128, 384, 2, 4),
        "2M": Shape(192, 512, 3, 6),
        "4M": Shape(256, 640, 4, 8),
    }
)
"""Named sizes; parameters are counted with a vocabulary of about 2,300 ("tiny" is for tests)."""


def shape_of(size: str) -> Shape:
    """The shape of a named size. Raises ValueError for an unknown one, with the nearest."""
    if size not in SIZES:
        raise ValueError(f"unknown model size {size!r}; {hint(size, list(SIZES))}")
    return SIZES[size]


def new_model(
    vocab_size: int, *, size: str = "1M", seed: int = 0, context: int = 4096, dropout: float = 0.0
) -> Any:
    """A randomly initialised Llama-style causal LM in float32, in evaluation mode.

    The weights are a function of the arguments; no global generator is left changed. context: the most positions.
    dropout: of attention, while training.
    """
    shape = shape_of(size)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=context,
        attention_dropout=dropout,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def load_model(folder: str | Path, *, device: str = "cpu", dtype: str = "auto") -> tuple[Any, Any]:
    """A folder's causal LM (evaluation mode) and its tokenizer; of a name on the hub see `envgym_agents.hub`.

    Of a folder with a processor of images, the vision-language model, with eyes, and the processor.
    dtype: "auto" (as stored), or a torch dtype's name such as "bfloat16". Raises ValueError for a device that
    is not here, and for weights that were cut off.
    """
    check_device(device)
    folder = folder_of(folder)
    tokenizer = load_tokenizer(folder)
    kind = AutoModelForImageTextToText if sees(folder) else AutoModelForCausalLM
    try:
        with _no_bars():
            model = kind.from_pretrained(str(folder), **SAFELY, use_safetensors=True, dtype=dtype)
    except SafetensorError as error:
        raise ValueError(
            f"{str(folder)!r}: a file of its weights is no whole safetensors file, get it again: {error}"
        ) from error
    model = model.to(device).eval()
    if not sees(folder):
        return model, tokenizer
    processor = AutoProcessor.from_pretrained(str(folder), **SAFELY)
    give_eyes(model, processor)
    return model, processor


def sees(folder: str | Path) -> bool:
    """Whether a folder's model is one that sees: there is a processor of images beside it."""
    return any((Path(folder) / name).is_file() for name in _PROCESSORS)


def processor_of(folder: str | Path) -> dict[str, Any]:
    """What a folder says of how images become its model's input, by the file that says it."""
    files = [Path(folder) / name for name in _PROCESSORS]
    return {file.name: json.loads(file.read_text()) for file in files if file.is_file()}


def empty_model(folder: str | Path) -> Any:
    """The folder's model in float32, in evaluation mode, without memory (torch's "meta"): its shape."""
    config = AutoConfig.from_pretrained(str(folder), **SAFELY)
    kind = AutoModelForImageTextToText if sees(folder) else AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(config, dtype=torch.float32).eval()


def check_config(folder: str | Path) -> None:
    """Raise ValueError where the folder's config.json is none of a model that the library can make."""
    try:
        AutoConfig.from_pretrained(str(folder), **SAFELY)
    except (OSError, ValueError, KeyError) as error:
        told = " ".join(str(error).split()).partition(". ")[0]
        raise ValueError(f"its config.json is none of a model that transformers knows: {told}") from error


def load_weights(folder: str | Path, model: Any) -> dict[str, torch.Tensor]:
    """The weights of a folder by their names in `model`, in its precision; the model is not changed."""
    with _no_bars():
        found = type(model).from_pretrained(str(folder), **SAFELY, use_safetensors=True, dtype=model.dtype)
    return dict(found.named_parameters())


def weights_digest(folder: str | Path) -> str:
    """Of a model folder's weights, configuration and tokenizer: what it says, wherever it lies.

    All of its bytes are read, once for a state of the files.
    """
    folder = folder_of(folder)
    files = sorted({file for pattern in _PARTS for file in Path(folder).glob(pattern)})
    return _digest(tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=64)
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file, _size, _time in files:
        with open(file, "rb") as stream:
            digest.update(f"{file.name} {hashlib.file_digest(stream, 'blake2b').hexdigest()}\n".encode())
    return digest.hexdigest()


def save_model(
    folder: str | Path, model: Any, tokenizer: Any, *, weights: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Write weights (safetensors), configuration and any tokenizer to a folder. weights: in place of its own."""
    with _no_bars():
        model.save_pretrained(str(folder), safe_serialization=True, state_dict=weights)
    if tokenizer is not None:
        tokenizer.save_pretrained(str(folder))


def check_device(name: str) -> None:
    """Raise ValueError when torch has no device of this name here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # which of them depends on how torch was built
        raise ValueError(f"device = {name!r}: {str(error).splitlines()[0]}") from None


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without the library's progress bars, which would break into ours; as it was, afterwards."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def parameters(model: Any) -> int:
    """How many weights a model has, each counted once."""
    return sum(weight.numel() for weight in model.parameters())


def max_length(model: Any) -> int:
    """The most positions the model's configuration allows; 4,096 where it names no bound."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        bound = getattr(model.config.get_text_config(), name, None)
        if isinstance(bound, int) and bound > 0:
            return bound
    return 4096
