"""Files of lines: what is torn or wrong is one sentence with file and line, whoever reads them."""

import json

import pytest
from envgym_environments.lines import read_lines
from envgym_environments.synthesized import synthesized_tasks
from envgym_environments.tool.registered import tool_tasks

from envgym.options import wrong_option
from envgym.task import Task


def test_what_is_wrong_is_told_with_file_and_line(tmp_path) -> None:
    file = tmp_path / "tasks of mine.jsonl"
    whole = Task(id="a", prompt="one\u2028line").model_dump_json()
    file.write_text(f"{whole}\n\n{whole[:-5]}")
    for read in (synthesized_tasks, tool_tasks):
        with pytest.raises(ValueError, match=r"tasks of mine\.jsonl, line 3: no task as JSON: the line: ") as told:
            read(path=str(file))
        assert "\n" not in str(told.value)
    file.write_text(f"{whole}\n")
    assert tool_tasks(path=str(file))[0].prompt == "one\u2028line"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="no text in UTF-8: invalid start byte at byte 0"):
        tool_tasks(path=str(file))
    (tmp_path / "pairs").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="line 1: no pair: it has no 'b'"):
        read_lines(tmp_path / "pairs", lambda line: json.loads(line)["b"], what="pair")


def test_an_option_that_the_caller_sets_itself_is_refused() -> None:
    def make(task: object, *, backend: str, tools: int = 1, **more: int) -> None: ...

    told = wrong_option("--env-option", {"backend": "landlock"}, make, given={"backend"}, skip=1)
    assert told == "--env-option.backend: it is no option here, it is set by who calls; known: tools"
    assert wrong_option("--env-option", {"tools": 2}, make, given={"backend"}, skip=1) is None
