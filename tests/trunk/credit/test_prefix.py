"""Trees of prefixes by hand, against a dictionary of all prefixes, and where they must say nothing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.credit import Ledger, group_mean, outcome, spread
from envgym.credit.prefix import along_prefixes, histories, tree_value
from envgym.credit.schemes.hierarchical import hierarchical
from envgym.credit.schemes.prefixes import token_prefix_tree, turn_prefix_tree
from envgym.credit.schemes.relative import dr_grpo
from envgym.credit.schemes.segments import spo_chain, spo_tree
from envgym.episode import ForkPoint, Group
from envgym.messages import Message, ToolCall
from envgym.testing import credit_laws as laws
from envgym.testing.credit_groups import Make, made_episode, made_turn, random_groups


def group(*members):
    return Group("t", tuple(members))


def near(found, wanted):
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def answer(name, said, reward, **more):
    return made_episode(name, [made_turn(reward, said=said, sampled=len(said))], **more)


def test_tokens_that_part_by_hand() -> None:
    """abc wins; abd and aef lose. V(a) = 1/3 as at the start, V(ab) = 1/2, V(ae) = 0, V(abc) = 1, V(abd) = 0."""
    made = group(answer("1", "abc", 1.0), answer("2", "abd", 0.0), answer("3", "aef", 0.0))
    win, second, third = token_prefix_tree()([made])
    near(win, [2 / 3, 2 / 3 + 1 / 6, 2 / 3 + 1 / 2])
    near(second, [-1 / 3, -1 / 3 + 1 / 6, -1 / 3 - 1 / 2])
    near(third, [-1 / 3, -1 / 3 - 1 / 3, -1 / 3])
    near(token_prefix_tree(weight=0.5)([made])[0], [2 / 3, 2 / 3 + 1 / 12, 2 / 3 + 1 / 4])
    deviation = np.sqrt(2) / 3  # both terms are divided by it
    near(token_prefix_tree(scale="std")([made])[0], np.array([2 / 3, 5 / 6, 7 / 6]) / deviation)


def test_an_answer_that_is_the_beginning_of_another_has_no_token_that_parts_them() -> None:
    short, long = token_prefix_tree()([group(answer("1", "ab", 1.0), answer("2", "abc", 0.0))])
    near(short, [0.5, 0.5])
    near(long, [-0.5, -0.5, -0.5 - 0.5])


def test_a_fork_in_the_middle_of_a_turn_measures_what_follows_and_is_no_sample_of_what_stood() -> None:
    """abc (1) was forked after a, as axy (0); beside it qrs (0). V(a..) = 1/2, so the start is 1/4 and not 1/3."""
    trunk, other = answer("1", "abc", 1.0), answer("2", "qrs", 0.0)
    fork = answer("3", "axy", 0.0, parent=ForkPoint("1", 0, 1))
    tree = outcome() >> group_mean() >> along_prefixes()
    found = tree([group(trunk, other, fork)])
    near(found[0], [1 / 4, 1 / 2, 0])
    near(found[1], [-1 / 4, 0, 0])
    near(found[2][1:], [-1 / 2, 0])


def test_values_of_a_tree_flow_from_its_forks_to_its_root_by_hand() -> None:
    """One turn, then three ways on: 1 (its own), 0 and 0 (forks). Beside it an episode that lost: 0."""
    trunk = made_episode("a", [made_turn(0.0, key="x"), made_turn(1.0, key="y")])
    one = made_episode("b", [made_turn(0.0, key="z", said="b")], parent=ForkPoint("a", 1), start=5)
    two = made_episode("c", [made_turn(0.0, key="z", said="c")], parent=ForkPoint("a", 1), start=5)
    lost = made_episode("d", [made_turn(0.0, key="w", said="d")])
    ledger = Ledger.of([group(trunk, one, two, lost)])
    known = tree_value(least=1).of(ledger)
    near(known, [1 / 6, 1 / 3, 0, 1 / 3, 0, 1 / 3, 0, 1 / 6, 0])
    assert np.isnan(tree_value().of(ledger)[[2, 4, 6, 8]]).all()  # nobody else was there
    sixth, third = 1 / 6, 1 / 3
    credits = turn_prefix_tree()([group(trunk, one, two, lost)])
    near(credits[0], [sixth, sixth, 2 * third, 2 * third])
    near(credits[1], [-third, -third])
    near(credits[3], [-sixth, -sixth])


def test_ids_of_calls_part_no_histories_and_actors_do() -> None:
    one, two = made_episode("a", [made_turn(1.0)]), made_episode("b", [made_turn(0.0)])
    at, depth = histories(Ledger.of([group(one, two)]))
    assert at.tolist() == [at[0], at[1]] * 2
    assert depth.tolist() == [0, 1, 0, 1]
    called = [
        made_episode(name, [replace(made_turn(0.0), messages=(asked(call, arguments),))])
        for name, call, arguments in (
            ("d", "1", {"x": 1, "y": 2}),
            ("e", "2", {"y": 2, "x": 1}),
            ("f", "2", {"x": 2}),
        )
    ]
    at, _ = histories(Ledger.of([group(*called)]))
    assert at[1] == at[3] != at[5]
    other = made_episode("c", [made_turn(0.0, actor="other")])
    at, _ = histories(Ledger.of([group(one, other)]))
    assert len(set(at.tolist())) == 4


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_where_no_prefix_is_shared_it_is_group_relative_credit_exactly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = []
    for one in random_groups(rng, Make(forks=False)):
        members = []
        for number, episode in enumerate(one):
            turns = [replace(t, prompt_ids=t.prompt_ids + 100 * (number + 1)) for t in episode.turns]
            members.append(replace(episode, turns=tuple(turns)))
        groups.append(Group(one.task_id, tuple(members)))
    for found, wanted in zip(token_prefix_tree()(groups), dr_grpo()(groups), strict=True):
        np.testing.assert_array_equal(found, wanted)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_without_forks_it_is_what_a_dictionary_of_all_prefixes_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = random_groups(rng, Make(forks=False, actors=False, failures=False, truncated=False, members=8))
    relative = (outcome() >> group_mean()).of(Ledger.of(groups))
    sums: dict[object, list[float]] = {}
    walks, row = [], 0
    for number, one in enumerate(groups):
        for episode in one:
            path: tuple[object, ...] = (number,)
            walk = []
            for turn in episode.turns:
                path = (*path, turn.prompt_ids.tobytes())
                for token in turn.sampled_ids.tolist():
                    walk.append((path, (*path, token)))
                    path = walk[-1][1]
                path = (*path, "end" if len(turn.sampled_ids) else "silent")
            # a prefix that ends inside a turn is one node, however the answer goes on
            for node in {node for pair in walk for node in pair}:
                sums.setdefault(node, []).append(float(relative[row]))
            walks.append(walk)
            row += 1
    found = (outcome() >> group_mean() >> along_prefixes())(groups)
    for credit, walk in zip(found, walks, strict=True):
        near(credit, [np.mean(sums[after]) - np.mean(sums[before]) for before, after in walk])


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_turns_whose_only_shared_history_is_the_root_get_group_relative_credit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = []
    for one in random_groups(rng, Make(forks=False, actors=False)):
        members = []
        for number, episode in enumerate(one):
            turns = [replace(t, messages=(replace_said(t, number),)) for t in episode.turns]
            members.append(replace(episode, turns=tuple(turns)))
        groups.append(Group(one.task_id, tuple(members)))
    wanted = (outcome() >> group_mean() >> spread())(groups)
    for found, other in zip(turn_prefix_tree()(groups), wanted, strict=True):
        near(found, other)


def asked(call: str, arguments) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name="run", arguments=arguments, id=call),))


def replace_said(turn, number):
    return turn.messages[0].model_copy(update={"content": f"{turn.messages[0].content} {number}"})


@st.composite
def forked_in_turns(draw) -> list[Group]:
    """Episodes and forks that left them in the middle of a turn, or between turns; some worlds failed."""
    groups = []
    for number in range(draw(st.integers(1, 2))):
        rewards = st.sampled_from([0.0, 1.0, 0.5])
        members = []
        for trunk in range(draw(st.integers(1, 3))):
            said = draw(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
            turns = [made_turn(draw(rewards), key=word, said=word, sampled=len(word)) for word in said]
            members.append(made_episode(f"{number}-{trunk}", turns, failed=draw(st.integers(0, 5)) == 0))
        for fork in range(draw(st.integers(0, 4))):
            parent = members[draw(st.integers(0, len(members) - 1))]
            if parent.parent is not None:
                continue
            turn = draw(st.integers(0, len(parent.turns) - 1))
            left = parent.turns[turn]
            token = draw(st.integers(0, len(left.sampled_ids)))
            rest = draw(st.text("ab", min_size=1, max_size=3))
            first = made_turn(draw(rewards), said=said_of(left)[:token] + rest, sampled=token + len(rest))
            more = [made_turn(draw(rewards), said="b", sampled=1)] * draw(st.integers(0, 1))
            at = ForkPoint(parent.id, turn, token)
            failed = draw(st.integers(0, 5)) == 0
            name = f"{number}-f{fork}"
            members.append(made_episode(name, [first, *more], parent=at, start=left.position, failed=failed))
        groups.append(Group("t", tuple(members)))
    return groups


def said_of(turn) -> str:
    return bytes((turn.sampled_ids - 10).astype(np.uint8)).decode()


@pytest.mark.slow
@settings(max_examples=80)
@given(
    forked_in_turns(),
    st.sampled_from(
        [token_prefix_tree(), turn_prefix_tree(), spo_chain(), spo_tree(), hierarchical(branching=1.0)]
    ),
    st.integers(0, 2**32),
)
def test_forks_in_the_middle_of_turns_keep_the_laws(groups: list[Group], scheme, seed: int) -> None:
    laws.law_g(scheme, groups)
    laws.law_a(scheme, groups)
    laws.law_b(scheme, groups)
    laws.law_f(scheme, groups, np.random.default_rng(seed))
    laws.law_i(scheme, groups)


def test_a_fork_whose_world_failed_cuts_no_turn():
    """Found by the test above: a failed fork set those apart who had said the same, one of whom it had left."""
    first, last = (made_turn(reward, key="a", said="a", sampled=1) for reward in (0.0, 1.0))
    fork = made_turn(0.0, said="aa", sampled=2)
    left = (made_episode("0", [first, first]), made_episode("1", [first, last]))
    failed = made_episode("f", [fork], parent=ForkPoint("0", 0, 1), start=0, failed=True)
    for scheme in (spo_tree(), spo_chain(), hierarchical(branching=1.0)):
        laws.law_i(scheme, [Group("t", (*left, failed))])
    near(spo_tree()([Group("t", (*left, failed))])[0], [0.0, -0.5])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.text("ab", min_size=3, max_size=3), st.sampled_from([0.0, 0.5, 1.0])), min_size=1))
def test_credit_along_prefixes_adds_up_to_nothing_over_those_who_chose(drawn) -> None:
    """At every token the credits of all who came there by one prefix weigh to zero: its value is their mean."""
    members = [answer(f"e{k}", said, reward) for k, (said, reward) in enumerate(drawn)]
    found = (outcome() >> group_mean() >> along_prefixes())([group(*members)])
    for place in range(3):
        for prefix in {said[:place] for said, _ in drawn}:
            near(sum(f[place] for f, (said, _) in zip(found, drawn, strict=True) if said[:place] == prefix), 0)
