import difflib
import marshal
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest
from envgym_environments.code_repair.quality import (
    _names,
    _of_stretch,
    byte_code,
    patch_lines,
    patch_similarity,
    problems,
)
from hypothesis import given
from hypothesis import strategies as st

BASE = {"a.py": "one\ntwo\nthree\n", "b.py": "x\n"}
TEXT = st.text(st.sampled_from("ab\n "), max_size=20)


def test_the_answer_itself_is_worth_one_and_no_change_minus_one() -> None:
    gold = {"a.py": "one\n2\nthree\n"}
    assert patch_similarity(BASE, gold, gold) == 1.0
    assert patch_similarity(BASE, {}, gold) == -1.0
    assert patch_similarity(BASE, {"a.py": BASE["a.py"]}, gold) == -1.0


def test_a_file_that_one_side_changes_counts_nothing() -> None:
    gold = {"a.py": "one\n2\nthree\n"}
    assert patch_similarity(BASE, gold | {"b.py": "y\n"}, gold) == 0.5
    assert patch_similarity(BASE, {"b.py": "y\n"}, gold) == 0.0


def test_the_ratio_is_of_the_two_diffs_without_headers() -> None:
    left = "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
    right = "@@ -1,3 +1,3 @@\n one\n-two\n+II\n three"
    expected = difflib.SequenceMatcher(None, left, right, autojunk=False).ratio()
    found = patch_similarity(BASE, {"a.py": "one\n2\nthree\n"}, {"a.py": "one\nII\nthree\n"})
    assert found == expected


@given(TEXT, TEXT)
def test_similarity_lies_between_its_bounds(mine: str, gold: str) -> None:
    found = patch_similarity(BASE, {"a.py": mine}, {"a.py": gold})
    assert found == -1.0 or 0.0 <= found <= 1.0


def test_lines_are_those_added_and_removed() -> None:
    assert patch_lines(BASE, {"a.py": "one\n2\nthree\n"}) == 2
    assert patch_lines(BASE, {"b.py": None}) == 1
    assert patch_lines(BASE, {"c.py": "x\ny\n"}) == 2
    assert patch_lines(BASE, {"c.py": "x\x0c\u2028y\n"}) == 1, "only a line feed ends a line"


def test_the_ends_of_lines_are_part_of_them() -> None:
    gold = {"a.py": "one\n2\nthree\n"}
    windows = {"a.py": "one\r\n2\r\nthree\r\n"}
    assert patch_lines(BASE, windows) == 6
    assert patch_similarity(BASE, windows, gold) < 1
    assert patch_lines(BASE, {"a.py": "one\ntwo\nthree"}) == 2
    assert patch_similarity(BASE, {"a.py": "one\n2\nthree"}, gold) < 1


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("import os\n\ndef f(a):\n    return os.path.join(a, str(len(a)))\n", 0),
        ("import os, sys\nprint(os)\n", 1),
        ("def f():\n    return undefined + [x for x in range(3)][0]\n", 1),
        ("from __future__ import annotations\nimport os\n__all__ = ['os']\n", 0),
        ("from os import *\nprint(anything)\n", 0),
        (
            "class A:\n    x = 1\n    def f(self):\n        global late\n        late = 1\nprint(late, __file__)\n",
            0,
        ),
        ("assert (1, 'always')\n", 1),
        ("def f(:\n", 3),
        ("x = " + "(" * 500 + ")" * 500, 2),
        ("x = unknown" + " + 1" * 900, 1),
    ],
)
def test_problems_are_counted(text: str, count: int) -> None:
    assert problems(text) == count


STRETCHES = (
    "import os\nimport json\n",
    "from __future__ import annotations\n",
    "from __future__ import (\n    annotations,\n)\n",
    "def f(a: os.PathLike) -> 'json':\n    return late(a)\n",
    "@decorated\n\n\ndef g():\n    global told\n    told = 1\n",
    "@decorated\n@twice\nclass A(Missing):\n    x = 1\n\n    def h(self):\n        return x, os\n",
    "if os:\n    late = 1\nelse:\n    late = 2\n",
    'TEXT = """\n\ndef shown(): pass\n\nclass Shown: pass\n"""\n',
    "async def k():\n    async with told as late:\n        yield late, '\\d'\n",
    "x = (1\n\n\n)\n",
    "def outer():\n    y = 1\n\n    def inner():\n        nonlocal y\n        y = z\n    return inner\n",
)


@given(st.lists(st.sampled_from(STRETCHES), max_size=6), st.sampled_from(["\n\n", "\n\n\n", ""]))
def test_the_names_of_a_module_are_those_of_its_stretches(stretches: list[str], between: str) -> None:
    text = between.join(stretches)
    try:
        whole = _of_stretch(text)
    except SyntaxError:
        return
    assert _names(text) == whole


def test_byte_code_is_what_an_import_would_make_and_only_where_it_would_say_nothing(tmp_path: Path) -> None:
    text = 'import os\n\ndef f(a):\n    """Says."""\n    assert a, \'é\'\n    return os.sep + a\n'
    made = byte_code(text)
    assert made is not None
    module = tmp_path / "module.py"
    module.write_bytes(text.encode())
    kept = py_compile.compile(
        str(module), dfile="module.py", optimize=0, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
    )
    known = Path(str(kept)).read_bytes()
    assert made[:16] == known[:16]
    assert marshal.loads(made[16:]) == marshal.loads(known[16:])
    Path(str(kept)).write_bytes(made)
    command = [sys.executable, "-v", "-c", "import module; assert module.f.__code__.co_filename == module.__file__"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"code object from '{kept}'" in done.stderr, "an import takes it, and says the file's own name"
    for silent in ("assert (1, 'always')\n", "x = '\\d'\n", "def f(:\n", "\udcff"):
        assert byte_code(silent) is None


@given(st.text(max_size=60))
def test_any_text_has_a_number_of_problems(text: str) -> None:
    assert problems(text) >= 0
