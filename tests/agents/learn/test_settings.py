"""The list of settings is the code's own: it holds every field, and it is a configuration."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")
from envgym_agents.learn.config import TrainConfig, load
from envgym_agents.learn.settings import settings_text

from envgym.cli import run

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/settings.md"


def fields(model, prefix=""):
    for name, info in model.model_fields.items():
        if hasattr(info.annotation, "model_fields"):
            yield from fields(info.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, info


def test_every_setting_has_one_line_that_says_what_it_is():
    text = settings_text()
    for name, info in fields(TrainConfig):
        assert info.description, name
        assert re.search(
            rf"^(# )?\[?([a-z_]+\.)*{name.rpartition('.')[2]}\b.*# .*{re.escape(info.description)}$", text, re.M
        ), name
    assert max(map(len, text.splitlines())) <= 140


def test_the_settings_as_printed_are_the_default_configuration(tmp_path):
    (tmp_path / "all.toml").write_text(settings_text())
    assert load(tmp_path / "all.toml") == TrainConfig()
    commented = settings_text().replace("# threads = none", "threads = 2 ")
    assert tomllib.loads(commented)["threads"] == 2


def test_the_document_is_what_the_command_prints(capsys):
    assert run(["train", "--settings"]) == 0
    printed = capsys.readouterr().out
    assert printed == settings_text() + "\n"
    (shown,) = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.S)
    assert shown == printed, "docs/settings.md is old: put into it what `envgym train --settings` prints"


def test_help_settings_mistakes_and_reports_are_told_without_torch(tmp_path):
    """It takes seconds to import, which nobody waits for who trains nothing."""
    asked = [["train", "--help"], ["eval", "--help"], ["report", "--help"], ["train", "--settings"]]
    asked.append(["train", "--out", str(tmp_path / "run"), "--set", "reinforce.stepz=3"])
    asked.append(["report", str(tmp_path)])
    program = (
        f"import json, sys, envgym.cli; codes = [envgym.cli.run(one) for one in {asked}];"
        "print(json.dumps([codes, sorted(sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    *told, found = done.stderr.splitlines()
    codes, modules = json.loads(found)
    assert codes == [0, 0, 0, 0, 2, 2]
    mistakes = ["reinforce.stepz: there is no such field; did you mean 'steps'?"]
    mistakes.append(f"{tmp_path} holds no run: there is no config.json")
    assert told == [f"envgym: {one}" for one in mistakes]
    assert not {"torch", "transformers"} & {*modules}
