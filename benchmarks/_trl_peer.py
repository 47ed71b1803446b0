"""TRL's side of `trl_steps`: its GRPO trainer over the same folder, world and tool, in a process of its own.

`environment_factory` is what its documentation says for worlds with tools; the tool is a plain function, which is
its shortest way (it runs tools of a batch one after the other, asynchronous ones too). Gradient checkpointing and
bfloat16, its defaults, are off: on a CPU with a model of this size both only cost. Prints a JSON line for each
plan, "ended" in it where the run ended before its last step.

    python _trl_peer.py PLAN...
"""

import os
import sys
import tempfile
import time
import warnings
import zipfile
from itertools import pairwise
from pathlib import Path

from _trl_formulas import VERSION, installed
from _trl_world import CALLS, HANG, PROMPT, Plan, Trouble, each, told

__all__ = ["located", "template"]


def located(scratch: Path) -> Path:
    """A folder from which trl of the pinned version can be imported: installed, or its wheel unpacked there.

    Raises SystemExit where there is neither.
    """
    if (found := installed()) is not None:
        return found.parent
    wheel = Path(sys.prefix) / "wheels" / f"trl-{VERSION}-py3-none-any.whl"
    if not wheel.exists():
        raise SystemExit(f"trl_steps: no trl {VERSION}: neither installed nor {wheel}; scripts/setup.sh fetches it")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(scratch)
    return scratch


def template(place: Path) -> str:
    """The chat template that both sides use: one that TRL knows to be good for training with tools."""
    return (place / "trl" / "chat_templates" / "qwen2_5.jinja").read_text()


class Boxes:
    """The world as TRL takes it: `reset` with the columns of a row, every public method a tool."""

    def __init__(self, tool_s: float, trouble: Trouble) -> None:
        self._tool_s, self._trouble = tool_s, trouble

    def reset(self, **row) -> None:
        self._trouble.in_world("no-reset")
        self._number, self._opened = row["number"], 0

    def open_box(self) -> str:
        """Open the next box.

        Returns:
            What it holds.
        """
        if self._tool_s:
            time.sleep(self._tool_s)
        if (other := self._trouble.in_tool()) is HANG:
            time.sleep(3600)
        self._opened += 1
        return told(self._opened, self._number) if other is None else other


def trained(plan: Plan) -> dict[str, object]:
    """Seconds of each step, and facts that show that both sides did the same."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(plan.threads)
    trouble, times, worked, facts = Trouble(plan.fault), [], [], {}

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **_more):
            times.append(time.perf_counter())
            worked.append(time.process_time())

        def on_log(self, args, state, control, logs=None, **_more):
            names = {"tokens": "completions/mean_length", "calls": "tools/call_frequency", "reward": "reward"}
            facts.update({name: float(logs[told]) for name, told in names.items() if told in logs})

    def verdict(completion, held):
        trouble.in_world("no-verdict")
        return float(completion[-1].get("content", "").strip() == str(held))

    def answered(completions, number, **_more):
        return list(map(verdict, completions, number))

    config = GRPOConfig(
        output_dir=plan.folder + "-trl", max_steps=plan.steps, per_device_train_batch_size=plan.tasks * plan.group,
        num_generations=plan.group, max_completion_length=plan.tokens, learning_rate=1e-4, beta=0.0,
        loss_type="dr_grpo", scale_rewards="none", num_iterations=1, temperature=1.0, use_cpu=True, bf16=False,
        gradient_checkpointing=False, lr_scheduler_type="constant", logging_steps=1, save_strategy="no",
        report_to="none", disable_tqdm=True, log_level="error", dataloader_pin_memory=False,
        max_tool_calling_iterations=CALLS + 1, seed=0,
    )  # fmt: skip
    rows = [{"prompt": [{"role": "user", "content": PROMPT}], "number": number} for number in range(10)]
    trainer = GRPOTrainer(
        model=plan.folder, reward_funcs=answered, args=config, train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(plan.folder, padding_side="left"), callbacks=[Watch()],
        environment_factory=lambda: Boxes(plan.tool_s, trouble),
    )  # fmt: skip
    trainer.train()
    prompts, *_rest = trainer._tokenize_prompts([rows[0]["prompt"]] * plan.tasks * plan.group)
    steps_s, work_s = ([after - before for before, after in pairwise(one)] for one in (times, worked))
    return {
        "steps_s": steps_s,
        "work_s": work_s,
        "prompt": [int(one) for one in prompts[0]],
        "facts": facts | {"went wrong": trouble.asked >= Trouble.AT},
    }


def main() -> None:
    warnings.simplefilter("ignore")
    plans = [Plan.read(text) for text in sys.argv[1:]]
    with tempfile.TemporaryDirectory(dir=os.path.dirname(plans[0].folder)) as scratch:
        sys.path.append(str(located(Path(scratch))))
        import trl.trainer.grpo_trainer  # noqa: F401  # not in the time of the first plan

        each(plans, trained)


if __name__ == "__main__":
    main()
