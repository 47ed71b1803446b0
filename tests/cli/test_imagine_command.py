"""`envgym imagine`: a store of conversations, once for each seed."""

from envgym.store import StoreReader
from envgym.synthesis.imagine import IMAGINED


def test_it_writes_a_store_goes_on_with_it_and_mixes_no_two_goals(envgym, tmp_path):
    goal, out = tmp_path / "goal.toml", tmp_path / "store"
    goal.write_text('name = "seller"\nsays = "Find out what the person wants, and offer it."\nopens = "agent"\n')
    call = ["imagine", str(goal), "--agent", "scripted-imaginer", "-n", "5", "--out", str(out)]
    done = envgym(*call)
    assert done.code == 0, done.err
    with StoreReader(out) as reader:
        kept = [reader[one] for one in reader.ids]
    assert f"{len(kept)} conversations" in done.out
    assert {e.provenance[0] for e in kept} == {(IMAGINED, "scripted-imaginer")}
    assert not any(turn.sampled_ids.size for e in kept for turn in e.turns)
    again = envgym(*call)
    assert (again.code, f"({len(kept)} of them before)" in again.out) == (0, True)
    more = envgym(*call[:5], "7", *call[6:])
    assert (more.code, f"({len(kept)} of them before)" in more.out) == (0, True)
    with StoreReader(out) as reader:
        assert len(reader.ids) > len(kept)
        assert {e.id for e in kept} < set(reader.ids)
    assert envgym(*call, "--seed", "1").code == 0
    goal.write_text('name = "seller"\nsays = "Sell."\n')
    other = envgym(*call)
    assert (other.code, "of another goal" in other.err, "take another --seed" in other.err) == (2, True, True)
    goal.write_text('name = "seller"\nsays = 1\n')
    assert "says: Input should be" in envgym(*call, "--seed", "2").err
    goal.write_text('name = "seller"\nsays = "Sell."\n')
    nobody = envgym(*call[:2], "--agent", "scripted-judge", "--out", str(tmp_path / "none"))
    assert (nobody.code, "0 conversations" in nobody.out) == (1, True)
