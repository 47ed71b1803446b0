"""What people see of progress: estimates from what was done now, bounded by what a budget leaves."""

import io

from rich.console import Console

from envgym.progress import Bar


def shown(terminal: bool, *updates: tuple[int, dict[str, object]]) -> str:
    out = io.StringIO()
    with Bar(Console(file=out, force_terminal=terminal, width=120), "episodes", 3) as bar:
        for done, options in updates:
            bar.update(done, "5 tokens/s", **options)  # type: ignore[arg-type]
        bar.tell("a later note")
    return out.getvalue()


def test_what_was_done_by_an_earlier_call_is_no_measure_of_what_is_left() -> None:
    assert "episodes 3/3  0:00:00  eta ?  5 tokens/s" in shown(False, (3, {"measured": False}))
    assert "eta 0:00:00" in shown(False, (3, {}))


def test_the_estimate_is_never_more_than_a_budget_leaves() -> None:
    assert "eta 0:00:00" in shown(False, (1, {"at_most_s": 0.0}), (3, {"at_most_s": 0.0}))


def test_a_note_changes_on_a_terminal_without_a_step() -> None:
    assert "a later note" in shown(True, (1, {}))
    assert "a later note" not in shown(False, (1, {}))
