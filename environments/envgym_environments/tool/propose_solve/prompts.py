"""What proposers and solvers are told."""

from typing import Any

from envgym.task import Task
from envgym_environments.tool.propose_solve.library import Triple

__all__ = ["ASKED", "asked", "proposing"]

_PROPOSE = {
    "deduction": "A solver will see program and input, and must say the output.",
    "abduction": "A solver will see program and output, and must find an input that gives it.",
}
ASKED = {
    "deduction": "What does this program return for the input below? Answer with a Python literal.",
    "abduction": "Find an input for which this program returns the output below: f's arguments, commas between.",
    "induction": "Write a program, a function f, that does what these examples show; it is tried on others.",
}
"""How a solver's question of each kind begins."""


def proposing(task: Task, inputs: int) -> str:
    """The proposer's first observation: what to propose, beside what was proposed before."""
    kind, shown = str(task.metadata["kind"]), task.metadata["references"]
    assert isinstance(shown, list)
    head = f"You propose a task of {kind} about a Python program. "
    if kind == "induction":
        head += (
            f"This is the program; give {inputs} different inputs and a message. A solver will see the message and "
            f"half of the inputs with their outputs, and must write the program.\n\n{task.metadata['program']}"
        )
    else:
        head += f"Its one function is f. {_PROPOSE[kind]} It must end soon and return a literal, always the same."
    before = "\n\n".join(_reference(one) for one in shown)
    return (
        f"{head}\nYou earn most when a few solvers succeed, nothing when all or none do.\n\n"
        f"Proposed before, make something else:\n\n{before}"
    )


def _reference(one: Any) -> str:
    return f"{one['program'].rstrip()}\n# input: {one['inputs'][0][1:-1].rstrip(',')}"


def asked(kind: str, triple: Triple) -> str:
    """A solver's whole observation."""
    if kind == "induction":
        pairs = list(zip(triple.inputs, triple.outputs, strict=True))[: len(triple.inputs) // 2]
        rows = "\n".join(f"f{given} -> {found}" for given, found in pairs)
        return f"{ASKED[kind]}\n{triple.message}\n{rows}\nCall answer with the program."
    what = f"input: {triple.inputs[0]}" if kind == "deduction" else f"output: {triple.outputs[0]}"
    return f"{ASKED[kind]}\n\n{triple.program}\n{what}\nCall answer."
