"""Every chat template that TRL's wheel ships: incremental ids are the reference's, or a new segment opens.

The templates are read from the wheel that scripts/setup.sh downloads; nothing of it is installed or copied.
"""

import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from envgym_agents.template import FolderTemplate
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from envgym.messages import Message

WHEEL = Path(sys.prefix) / "wheels" / "trl-1.16.0-py3-none-any.whl"


def _templates() -> dict[str, str]:
    if not WHEEL.exists():
        return {}
    with zipfile.ZipFile(WHEEL) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".jinja")]
        return {Path(name).stem: wheel.read(name).decode() for name in names}


TEMPLATES = _templates()
SPECIAL = ["<|im_start|>", "<|eot_id|>", "<|end|>", "<|assistant|>", "<|user|>", "<|system|>"]
PARTED = {f"{name}{kind}" for name in ("idefics3", "llava_next", "smolvlm") for kind in ("", "_training")}
"""They take text only as one of several parts, and put a blank before what an assistant says."""
WORDS = ["look", "at the tests", "they fail", "apply 3", "now they pass \u00e9\u00df", " two\nlines ", "{'a': 1}"]


def tokenizer(template: str, end: str = "<|im_end|>") -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    core.train_from_iterator(["user assistant system tool", *WORDS], trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token=end, additional_special_tokens=SPECIAL
    )
    made.chat_template = template
    return made


def test_the_wheel_with_the_templates_is_here():
    if not TEMPLATES:
        pytest.skip(f"{WHEEL} is not here; scripts/setup.sh downloads it")
    assert len(TEMPLATES) > 60


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_shipped_template_is_built_incrementally_or_opens_a_segment(name):
    template = FolderTemplate(tokenizer(TEMPLATES[name]))
    rng = np.random.default_rng(0)
    for system in (True, False):
        conversation, segments = template.open(), 0
        roles = (["system"] if system else []) + ["user"]
        for turn in range(4):
            shown = [Message(role=role, content=str(rng.choice(WORDS))) for role in roles]
            before = list(conversation.ids)
            added = conversation.show(shown)
            reference = template.encode(template.render(conversation.messages))
            if added.position:
                assert conversation.ids == [*before, *added.ids], "what was sampled stays as it is"
                assert conversation.ids == reference, f"turn {turn} of {name} drifts"
            else:
                segments += 1
                assert (added.segment, list(added.ids)) == (conversation.segment, reference)
            conversation.said([*template.encode(str(rng.choice(WORDS))), template.stop_ids[-1]])
            roles = ["tool"] if turn % 2 else ["user"]
        assert segments >= 1


@pytest.mark.parametrize("name", sorted(PARTED))
def test_a_template_that_takes_text_as_parts_goes_on_in_one_segment(name):
    if name not in TEMPLATES:
        pytest.skip(f"{WHEEL} is not here; scripts/setup.sh downloads it")
    made = tokenizer(TEMPLATES[name], "</s>" if "llava" in name else "<end_of_utterance>")
    template = FolderTemplate(made)
    conversation, place = template.open(), 0
    for role, text in (("system", "look"), ("user", "at the tests"), ("tool", "they fail"), ("user", "")):
        shown = [Message(role=role, content=text)] if role != "system" else [
            Message(role=role, content=text), Message(role="user", content="apply 3")
        ]  # fmt: skip
        added = conversation.show(shown)
        assert (added.segment, added.position) == (0, place), "a template that extends its past opens no segment"
        assert conversation.ids == template.encode(template.render(conversation.messages))
        assert text in template.decode(added.ids)
        assert sum(count for _role, count in added.roles) == len(added.ids)
        said = [*template.encode(" now they pass"), made.eos_token_id]
        assert conversation.said(said) == " now they pass"
        place = len(conversation.ids)
