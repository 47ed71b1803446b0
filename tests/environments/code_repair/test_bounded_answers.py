"""What the full tools cut of a long answer, and that they say so."""

import pytest
from envgym_environments.code_repair.report import TestReport
from envgym_environments.code_repair.symbol_tools import definition, references, symbols
from envgym_environments.code_repair.tools import clip_row, clip_rows, report_text, search, view
from hypothesis import given
from hypothesis import strategies as st

from envgym.sandbox import SandboxBackend
from envgym.task import World


@given(
    rows=st.lists(st.text("ab ", max_size=400), max_size=300),
    lines=st.integers(3, 250),
    most=st.integers(1100, 8000),
)
def test_rows_are_whole_or_the_first_and_the_last_and_how_many_are_not_there(rows, lines, most) -> None:
    shown = clip_rows(rows, "things", most=most, lines=lines).split("\n")
    whole = [clip_row(row) for row in rows]
    at = next((number for number, row in enumerate(shown) if row.endswith("things cut ...")), None)
    if at is None:
        assert shown == (whole or [""])
        return
    head, tail = shown[:at], shown[at + 1 :]
    assert head
    assert tail
    assert (head, tail) == (whole[: len(head)], whole[-len(tail) :])
    assert shown[at] == f"... {len(rows) - len(head) - len(tail)} of {len(rows)} things cut ..."
    assert len(head) + len(tail) <= min(lines, len(rows) - 1)
    assert sum(len(row) + 1 for row in head + tail) <= most


def test_a_long_line_keeps_both_ends_and_says_what_is_not_there() -> None:
    assert clip_row("a" * 300) == "a" * 300
    assert clip_row("a" * 500 + "b" * 100) == "a" * 200 + " ... 300 characters cut ... " + "b" * 100


def test_a_report_says_how_many_failures_and_unread_files_it_leaves_out_and_what_of_a_line() -> None:
    report = TestReport(
        outcomes={f"t{number}": "failed" for number in range(23)},
        errors={"t0": "ValueError: " + "x" * 250 + " is the value"},
        collection_errors={f"test_{number}.py": "SyntaxError: no" for number in range(8)},
    )
    text = report_text(report)
    assert "and 3 more\n" in text
    assert "\nand 3 more that cannot be collected\n" in text
    assert "76 characters cut" in text
    assert "is the value\n" in text


@pytest.mark.namespaces
@pytest.mark.timeout(60)
def test_a_search_and_a_view_keep_head_and_tail_and_say_what_was_cut(in_backend) -> None:
    async def body(backend: SandboxBackend) -> None:
        async with await backend.create(World(workdir="/repo")) as sandbox:
            rows = [f"needle {number}" for number in range(1, 451)]
            await sandbox.write("many.txt", "\n".join(rows).encode())
            await sandbox.write("wide.txt", ("pin" + "x" * 400 + "end\n").encode())
            found = (await search(sandbox, "needle", ".")).split("\n")
            assert found[0] == "many.txt:1:needle 1"
            assert found[-1] == "many.txt:450:needle 450"
            assert "... 251 of 450 matches cut ..." in found
            assert (await search(sandbox, "needle 44.$", ".")).count("\n") == 9, "what fits is whole"
            wide = await search(sandbox, "pin", ".")
            assert "characters cut" in wide
            assert wide.endswith("end")
            seen = (await view(sandbox, "many.txt", 1, 0)).split("\n")
            assert seen[-2] == "  200 needle 200"
            assert seen[-1] == "(250 lines behind line 200 cut; 450 lines in all)"
            assert (await view(sandbox, "many.txt", 449, 450)).endswith("needle 450\n(450 lines in all)")
            assert "characters cut" in await view(sandbox, "wide.txt", 1, 0)

    in_backend(body)


@pytest.mark.namespaces
@pytest.mark.timeout(60)
def test_the_symbol_tools_keep_head_and_tail_too(in_backend) -> None:
    async def body(backend: SandboxBackend) -> None:
        async with await backend.create(World(workdir="/repo")) as sandbox:
            body = "\n".join(f"    x = {number}" for number in range(2, 301))
            await sandbox.write("long.py", f"def long():\n{body}\n".encode())
            await sandbox.write("many.py", "\n".join(f"f{number} = f0" for number in range(450)).encode())
            shown = (await definition(sandbox, "long")).split("\n")
            assert (shown[1], shown[-1]) == ("    1 def long():", "  300     x = 300")
            assert "... 221 of 300 lines cut ..." in shown
            for outline in (await symbols(sandbox, "many.py", ""), await references(sandbox, "f0")):
                assert " lines cut ..." in outline
                assert "450: " in outline

    in_backend(body)
