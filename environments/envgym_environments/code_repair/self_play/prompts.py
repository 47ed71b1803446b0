"""What the players of self-play are told. Text only."""

from collections.abc import Sequence

from envgym_environments.code_repair.self_play.history import Revert

__all__ = ["HISTORY", "INJECT", "REPAIR", "STRATEGIES", "closing", "injector_prompt", "solver_prompt"]

INJECT = "You play the injector."
REPAIR = "You play the solver."
"""How each player's first observation begins."""

_STRATEGIES = {
    "direct": (
        "Change the package's code so that it does something subtly wrong. Spread the mistake over more than one "
        "place if you can: what a reader sees at once teaches nobody."
    ),
    "removal": (
        "Take working code away: a branch, a function's body, a feature that tests use, with what refers to it, "
        "and "
        "leave the package importable. Whoever repairs it has to write it again."
    ),
}

STRATEGIES = tuple(_STRATEGIES)
HISTORY = "history"
"""The third way, of a repository that came with its history: a commit is taken back."""


def _asked(strategy: str, revert: Revert | None) -> str:
    if revert is None:
        return _STRATEGIES[strategy]
    wrote = "\n".join(f"   {line}".rstrip() for line in revert.notes) or "   (nothing)"
    return f"""Take back what an earlier change of the package's code brought, whole or in part, and more if you
   like. Who made it wrote:

{wrote}

   This patch takes it back:

{revert.patch}"""


def injector_prompt(
    repository: str, package: str, tests: Sequence[str], strategy: str, attempts: int, revert: Revert | None = None
) -> str:
    """The injector's task. revert: the commit that is to be taken back, where the strategy is that."""
    files = "\n".join(f"- {name}" for name in tests[:40])
    more = f"\n- and {len(tests) - 40} more" if len(tests) > 40 else ""
    return f"""{INJECT} The repository of {repository} is unbroken: all its tests pass.

Leave a bug in it that others have to repair:
1. {_asked(strategy, revert)}
2. Run the tests: at least one must fail because of it.
3. Weaken the tests, so that they no longer notice: take away or loosen what fails. The difference to the original
   tests is all that the solvers will be told.
4. Call submit with the test files that specify the bug, separated by blanks; every test file that you changed
   must be among them.

It counts only if every file of the package that you change is needed to make a test fail, and if a test that
fails
with the bug does not fail any more with your weakened tests. {attempts} solvers try to repair it. You earn most
when some of them succeed, but few; nothing is gained when all do, or none.

The package's code is in {package}. The test files are:
{files}{more}"""


def solver_prompt(repository: str, package: str, patch: str, order: int) -> str:
    """The solver's task: the formal specification in the place of an issue."""
    again = " An earlier repair has failed, and is part of the code now." if order > 1 else ""
    return f"""{REPAIR} The code of {repository} has a bug that its tests do not notice.{again}

This change of the tests specifies what the code should do:

{patch}
Repair the package's code in {package}, so that with this change all the tests pass. Changes of tests do not count.
Call submit when you are done."""


def closing(solved: int, attempts: int) -> str:
    """What the injector is told at the end."""
    return f"{INJECT} {solved} of {attempts} solvers repaired the bug. Answer anything to end the game."
