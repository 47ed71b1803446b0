"""`envgym imagine`: a store of conversations, once for each seed."""

from envgym.store import StoreReader
from envgym.synthesis.imagine import IMAGINED


def test_it_writes_a_store_and_refuses_to_imagine_the_same_again(envgym, tmp_path):
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
    assert (again.code, "take another --seed" in again.err) == (2, True)
    assert envgym(*call, "--seed", "1").code == 0
    goal.write_text('name = "seller"\nsays = 1\n')
    assert "says: Input should be" in envgym(*call, "--seed", "2").err
    goal.write_text('name = "seller"\nsays = "Sell."\n')
    nobody = envgym(*call[:2], "--agent", "scripted-judge", "--out", str(tmp_path / "none"))
    assert (nobody.code, "0 conversations" in nobody.out) == (1, True)
