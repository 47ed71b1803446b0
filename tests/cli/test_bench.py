"""``envgym bench credit``: worlds and stores measured from the command line."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from envgym_environments.solvable import CORRIDOR
from rich.console import Console

from envgym.cli.bench import _candidates, bench_command, report
from envgym.cli.bench_shown import _table
from envgym.credit import SchemeSpec, group_mean, outcome
from envgym.oracle.bench import Setting
from envgym.oracle.candidates import BASIS, candidates_of
from envgym.registry import find, names, register, unregister


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    """As the entry points have them, also where the package was installed before they were there."""
    here = [("commands", "bench", bench_command), ("environments", "corridor", CORRIDOR)]
    missing = [one for one in here if one[1] not in names(one[0])]  # type: ignore[arg-type]
    for group, name, thing in missing:
        register(group, name, thing)  # type: ignore[arg-type]
    yield
    for group, name, _ in missing:
        unregister(group, name)  # type: ignore[arg-type]


@pytest.mark.slow
def test_worlds_are_measured_into_a_table_and_a_file(envgym, tmp_path: Path):
    out = tmp_path / "bench"
    given = ("bench", "credit", "--world", "vault", "--seeds", "2", "--episodes", "4", "--group", "4")
    ran = envgym(*given, "--scheme", "zero", "--scheme", "dr-grpo", "--scheme", "forked-values", "--out", str(out))
    assert ran.code == 0, ran.err
    assert "dr-grpo (peers)" in ran.out
    assert "forked-values (forks)" in ran.out
    found = json.loads((out / "credit.json").read_text())
    rows = {row["name"]: row for row in found["worlds"]["vault"]}
    assert "interquartile" in ran.out
    assert found["all"][0]["mse"]["value"] == pytest.approx(1.0, rel=0.5)
    assert rows["zero"]["mse"] == pytest.approx(rows["zero"]["power"])
    assert rows["dr-grpo"]["mse_95"][0] <= rows["dr-grpo"]["mse"] <= rows["dr-grpo"]["mse_95"][1]
    assert {path.name for path in out.iterdir()} == {"credit.json", "mse.png", "scaled_mse.png", "cosine.png"}
    again = envgym(*given, "--scheme", "zero", "--scheme", "dr-grpo", "--json")
    same = {row["name"]: row for row in json.loads(again.out)["worlds"]["vault"]}
    assert same["dr-grpo"]["mse"] == rows["dr-grpo"]["mse"]


def test_what_there_is_not_is_refused_with_what_there_is(envgym, tmp_path: Path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "credit.json").write_text("{}")
    for arguments, said in (
        (("--scheme", "dr-grp"), "did you mean 'dr-grpo'"),
        (("--out", str(full)), "is not empty; name a new folder"),
        (("--out", "/dev/null"), "no folder"),
        *((("--skill", skill), "--skill") for skill in ("nan", "inf", "-1", "1e308")),
        (("--option", "gamma=0.9"), "it is for one registered --scheme, and none is named"),
        (("--scheme", "dr-grpo", "--option", "gama=0.9"), "there is no such option; did you mean 'gamma'"),
        (("--agent-option", "model=there"), "--agent-option is of --store"),
        *(
            (("--store", str(tmp_path), flag, value), f"{flag} is of solvable worlds")
            for flag, value in (
                ("--world", "vault"),
                ("--group", "8"),
                ("--budget", "9"),
                ("--seeds", "10"),
                ("--skill", "1"),
                ("--fork-by", "uniform"),
            )
        ),
        (("--store", str(tmp_path), "--scheme", "exact-values"), "'exact-values' reads what only a solvable world"),
        (("--world", "moon"), "corridor, vault, desk"),
        (("--scheme", "magic"), "dr-grpo"),
        (("--scheme", "dr-grpo", "--world", "vault", "--world", "moon"), "corridor, vault, desk"),
        (("--fork-by", "luck"), "uniform, entropy"),
        (("--world", "vault", "--budget", "3", "--scheme", "zero"), "the measured members alone sample"),
    ):
        ran = envgym("bench", "credit", *arguments)
        assert ran.code == 2, arguments
        assert said in ran.err
        assert "vault" not in ran.err or "moon" in arguments or "--budget" in arguments  # nothing was begun
    assert (full / "credit.json").read_text() == "{}"


@pytest.mark.slow
def test_stored_episodes_are_measured_by_forks_with_who_played_them(envgym, tmp_path: Path):
    store = tmp_path / "store"
    played = ("guess", "-n", "6", "--out", str(store), "--task-option", "count=2", "--task-option", "most=6")
    assert envgym("collect", *played).code == 0
    ran = envgym("bench", "credit", "--store", str(store), "--times", "6", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    rows = {row["name"]: row for row in found["schemes"]}
    assert found["episodes"] == 6
    assert found["continuations"] == 12 * rows["zero"]["turns"]
    assert rows["zero"]["mse"] == pytest.approx(rows["zero"]["power"])
    assert "exact-values" not in rows
    assert rows["zero"]["cosine"] == 0
    for row in rows.values():  # two tasks are two groups, so something is known of their scatter
        assert row["mse_95"][0] <= row["mse"] <= row["mse_95"][1]
        assert -1 <= row["cosine_95"][0] <= row["cosine_95"][1] <= 1
    told = envgym("bench", "credit", "--store", str(store), "--times", "2", "--scheme", "group-outcome")
    assert "variance of an advantage" in told.out
    deaf = envgym("bench", "credit", "--store", str(store), "--scheme", "dr-grpo", "--scheme", "prof")
    assert deaf.code == 2
    assert "'prof' reads what only a solvable world tells" in deaf.err
    other = envgym("bench", "credit", "--store", str(store), "--agent-option", "model=there")
    assert other.code == 2
    assert "model = 'there': there is no such option" in other.err


def test_all_stands_for_the_bench_s_own_and_every_registered_scheme_once_each():
    every = _candidates(["dr-grpo", "all", "zero"])
    found, labels = [one.name for one in every], [one.label for one in every]
    assert found[0] == "dr-grpo"
    assert len(labels) == len(set(labels))
    assert set(found) == {*(one.name for one in BASIS), *names("schemes")}
    for name in ("hierarchical", "turn-relative", "turn-prefix-tree", "token-prefix-tree"):
        assert {f"{name} (peers)", f"{name} (forks)"} <= set(labels)
    assert {"spo-tree (forks)", "progress-bonus (forks)"} <= set(labels)
    assert not {"spo-tree (peers)", "progress-bonus (peers)"} & set(labels)
    assert _candidates([]) == list(BASIS)


SMALL = ("bench", "credit", "--world", "vault", "--episodes", "2", "--group", "2", "--budget", "600")


@pytest.mark.slow
def test_one_seed_says_what_it_cannot_say_and_is_written_whole(envgym, tmp_path: Path):
    out = tmp_path / "new"
    ran = envgym(*SMALL, "--seeds", "1", "--scheme", "zero", "--scheme", "hierarchical", "--out", str(out))
    assert ran.code == 0, ran.err
    assert "nothing can be said of bias, variance and intervals" in ran.out
    assert "vault 1/1" in ran.err
    rows = json.loads((out / "credit.json").read_text())["worlds"]["vault"]
    assert [(row["name"], row["data"]) for row in rows] == [
        ("zero", "peers"), ("hierarchical", "peers"), ("hierarchical", "forks"),
    ]  # fmt: skip
    assert {(row["bias2"], row["variance"], row["mse_95"]) for row in rows} == {(None, None, None)}
    assert "all worlds" not in ran.out
    assert not (out / "credit.json.part").exists()


def test_an_option_of_the_scheme_is_given_to_it(envgym):
    plain, other = (
        json.loads(envgym(*SMALL, "--seeds", "1", "--scheme", "asymre", *more, "--json").out)["all"][0]["mse"]
        for more in ((), ("--option", "shift=0.5"))
    )
    assert plain["value"] != other["value"]


@pytest.mark.slow
def test_what_is_known_is_written_after_each_world(tmp_path: Path):
    seen: list[list[str]] = []
    setting = Setting(runs=1, groups=1, group=2, budget=1.0)
    found = report(
        ["vault", "corridor"], BASIS[:2], setting, skill=1.0, budget=None,
        sofar=lambda known: seen.append(list(known["worlds"])),
    )  # fmt: skip
    assert seen == [["vault"]]
    assert list(found["worlds"]) == ["vault", "corridor"]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_figure_is_cut_off_on_a_narrow_terminal(width: int):
    cells = [str(1.0 / (k + 3))[:8] for k in range(9)]
    columns = {f"a_column_{k}": [cell] for k, cell in enumerate(cells)}
    console = Console(width=width, file=io.StringIO(), highlight=False)
    _table(console, "vault", [{"name": "learned-values-forked", "data": "forks"}], columns)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(cell in text for cell in cells)
    assert all(name in text for name in columns)
    assert all(len(line) <= width for line in text.splitlines())


def test_a_scheme_that_ends_above_tokens_is_refused_with_what_it_lacks():
    spec = SchemeSpec("half-made", lambda: outcome() >> group_mean(), "a test's", "own")
    with pytest.raises(ValueError, match=r"gives credits of episodes, .* end it with >> spread\(\)"):
        candidates_of(spec, {})


def test_a_need_met_by_an_option_is_not_asked_for_forks():
    spec = find("schemes", "progress-bonus")
    assert [one.data for one in candidates_of(spec, {})] == ["forks"]
    given = {"values": lambda ledger: np.zeros(len(ledger.state_M))}
    assert [one.data for one in candidates_of(spec, given)] == ["peers", "forks"]
