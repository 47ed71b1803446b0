"""The sites' command line: wrong files are said at once, and leave nothing."""

import sqlite3

from envgym_environments.web.sites import cli
from typer.testing import CliRunner


def run(*arguments):
    return CliRunner().invoke(cli.sites_command, [str(one) for one in arguments], env={"COLUMNS": "400"})


def test_the_database_of_another_site_is_not_served(tmp_path):
    shop, text = tmp_path / "shop.db", tmp_path / "text.db"
    assert run("build", "shop", "--out", shop).exit_code == 0
    text.write_text("no database, and longer than the head of one is: " * 4)
    for path, says in ((shop, "is no database of 'forum': it has no table"), (text, "is no SQLite database")):
        before = path.read_bytes()
        answer = run("serve", "forum", "--database", path, "--port", 0)
        assert answer.exit_code == 2
        assert says in " ".join(answer.output.split())
        assert path.read_bytes() == before


def test_a_database_that_cannot_be_made_leaves_no_file(tmp_path, monkeypatch):
    def fails(key):
        raise sqlite3.OperationalError("no room")

    monkeypatch.setattr(cli, "build", fails)
    assert run("build", "shop", "--out", tmp_path / "shop.db").exit_code == 1
    assert list(tmp_path.iterdir()) == []
