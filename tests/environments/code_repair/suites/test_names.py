"""Names of tests that must fail: made as a file's others are, and told from them by nothing."""

import re

import numpy as np
import pytest
from envgym_environments.code_repair.suites.names import draw_name

_TEXT = "from shop import Basket\n\ndef test_a():\n    assert Basket(items=[price]).total_price == tax_rate\n"
_FORMS = {
    r"test_[a-z0-9]+(_[a-z0-9]+)+": ["test_total", "test_two_items", "test_empty_basket_is_free", "test_2d"],
    r"Test([A-Z][a-z0-9]+){2,}": ["TestA", "TestParseAll"],
    r"[a-z]+([A-Z][a-z0-9]+)+": ["adds", "addsTwoItems"],
    r"[A-Z][a-z]+([A-Z][a-z0-9]+)+": ["Adds", "AddsTwo"],
    r"[a-z]+( [a-z]+)+": ["adds up", "is free when empty"],
}


@pytest.mark.parametrize("form", _FORMS)
def test_a_new_name_is_written_like_the_others_and_has_none_of_them_in_it(form: str) -> None:
    names, rng = _FORMS[form], np.random.default_rng(3)
    drawn = [
        draw_name(names, _TEXT, rng, lead=form.startswith("test"), taken=["test_basket_more"]) for _ in range(200)
    ]
    assert len(set(drawn)) > 150
    assert all(re.fullmatch(form, one) for one in drawn), drawn
    assert not [one for one in drawn if any(name in one or one in name for name in names)]
    assert "test_basket_more" not in drawn
    said = {word.lower() for one in drawn for word in re.findall(r"[A-Z]?[a-z]+", one)}
    assert {"price", "tax"} <= said, "what the tests speak of is in their names too"


def test_a_runners_own_prefix_of_tests_is_kept() -> None:
    rng = np.random.default_rng(4)
    drawn = [draw_name(["it_adds", "it_is_free"], _TEXT, rng) for _ in range(50)]
    assert all(one.startswith("it_") and one.count("_") > 1 for one in drawn)
