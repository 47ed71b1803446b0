"""Test files are imported from what was read beforehand: its byte code where pytest left some, else its source."""

import importlib.util
import marshal
import struct
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from envgym_environments.code_repair.precompile import precompile
from envgym_environments.code_repair.pristine import Pristine

SOURCE = "def test_it():\n    assert [1] == [1]\n"


def compiled(tmp_path: Path) -> Path:
    """A tree of one test file whose byte code is there, as this pytest stores it."""
    (tmp_path / "test_it.py").write_text(SOURCE)
    precompile(tmp_path, ["test_it.py"], workdir=str(tmp_path))
    return tmp_path / "test_it.py"


def test_the_byte_code_that_this_pytest_leaves_is_used(tmp_path: Path) -> None:
    place = str(compiled(tmp_path))
    found = Pristine(str(tmp_path), "package", ["test_it.py"]).code(place)
    assert found is not None, "every run compiles every test file anew"
    assert found.co_filename == place


def test_byte_code_stamped_with_time_and_size_is_used_too(tmp_path: Path) -> None:
    place = compiled(tmp_path)
    stat = place.stat()
    _, code = rewrite._rewrite_test(place, None)  # type: ignore[arg-type]
    head = importlib.util.MAGIC_NUMBER + bytes(4) + struct.pack("<II", int(stat.st_mtime), stat.st_size)
    stored = place.parent / "__pycache__" / f"test_it{rewrite.PYC_TAIL}"
    stored.write_bytes(head + marshal.dumps(code))
    assert Pristine(str(tmp_path), "package", ["test_it.py"]).code(str(place)) is not None
    place.write_text(SOURCE + "\n")
    assert Pristine(str(tmp_path), "package", ["test_it.py"]).code(str(place)) is None


@pytest.mark.parametrize("change", [SOURCE.replace("1", "2"), SOURCE + "\n", ""])
def test_byte_code_of_another_source_is_not_used(tmp_path: Path, change: str) -> None:
    place = compiled(tmp_path)
    place.write_text(change)
    assert Pristine(str(tmp_path), "package", ["test_it.py"]).code(str(place)) is None


def test_byte_code_of_another_place_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SOURCE)
    precompile(tmp_path, ["test_it.py"], workdir="/elsewhere")
    assert Pristine(str(tmp_path), "package", ["test_it.py"]).code(str(tmp_path / "test_it.py")) is None


def test_a_replaced_file_has_no_byte_code(tmp_path: Path) -> None:
    place = str(compiled(tmp_path))
    pristine = Pristine(str(tmp_path), "package", ["test_it.py"])
    pristine.replace(place, SOURCE)
    assert pristine.code(place) is None
