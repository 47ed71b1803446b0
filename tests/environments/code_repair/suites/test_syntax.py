import pytest
from envgym_environments.code_repair.operators import apply
from envgym_environments.code_repair.suites import LANGUAGES
from envgym_environments.code_repair.suites.syntax import BUGS, GRAMMARS, find_bugs
from hypothesis import given, settings
from hypothesis import strategies as st

# the same function in every language, with at least one place for most kinds of bugs
SOURCES = {
    "javascript": """// é before the function: columns count characters
async function find(values, wanted, from) {
  if (!values) { return -1; }
  let count = 0; /* é */ let other = 1;
  for (let i = from; i < values.length && i <= 10; i++) {
    if (values[i] === wanted) { count += 1; } else { note(i, wanted); continue; }
  }
  await flush(count, other);
  return count > 0 ? true : false;
}
""",
    "go": """package p

func Find(values []int, wanted int, from int) (bool, error) {
	if len(values) == 0 {
		return false, nil
	}
	count := 0
	for i := from; i < len(values) && i <= 10; i++ {
		if values[i] == wanted {
			count += 1
		} else {
			note(i, wanted)
			continue
		}
	}
	if !ready {
		flush(values[from:wanted], count)
	}
	return count > 0, nil
}
""",
    "rust": """fn find(values: &[i32], wanted: i32, from: usize) -> bool {
    if values.is_empty() { return false; }
    let mut count = 0;
    let mut i = from;
    while i < values.len() && i <= 10 {
        if values[i] == wanted { count += 1; } else { note(i, wanted); break; }
        i += 1;
    }
    if !ready { flush(&values[0..count], count); }
    count > 0
}
#[cfg(test)]
mod tests {
    #[test]
    fn one() { assert!(1 < 2 && true); let x = 1 + 1; }
}
""",
    "c": """#include <stddef.h>
int find(const int *values, size_t wanted, size_t from)
{
    int count = 0;
    if (values == NULL) { return -1; }
    for (size_t i = from; i < 100 && i <= wanted; i++) {
        if (values[i] == 3) { count += 1; } else { note(i, wanted); continue; }
    }
    if (!ready) { flush(count, wanted); }
    return count > 0 ? 1 : 0;
}
""",
    "java": """class Finder {
  boolean find(int[] values, int wanted, int from) {
    if (values == null) { return false; }
    int count = 0;
    for (int i = from; i < values.length && i <= 10; i++) {
      if (values[i] == wanted) { count += 1; } else { note(i, wanted); continue; }
    }
    if (!ready) { flush(count, wanted); }
    return count > 0 ? true : false;
  }
}
""",
}
SOURCES["typescript"] = SOURCES["javascript"].replace(
    "(values, wanted, from)", "(values: number[], wanted: number, from: number): Promise<boolean>"
)
SOURCES["c++"] = SOURCES["c"].replace("int find", "template <class T> bool Box<T>::find")
COMMON = {
    "boundary", "comparison-flip", "and-or", "wrong-assignment", "negated-condition", "dropped-not", "off-by-one",
    "shifted-index", "swapped-arguments", "dropped-argument", "removed-guard", "removed-statement", "removed-else",
    "break-continue", "wrong-variable",
}  # fmt: skip


def test_every_language_but_python_has_a_grammar() -> None:
    assert set(GRAMMARS) == set(LANGUAGES) - {"python"} == set(SOURCES)


@pytest.mark.parametrize("language", sorted(SOURCES))
def test_every_bug_changes_its_place_and_nothing_else(language: str) -> None:
    source = SOURCES[language]
    found = find_bugs(source, language)
    for one in found:
        broken = apply(source, one)
        assert broken != source
        assert len(broken) == len(source) - len(one.before) + len(one.after)
        back = type(one)(
            one.operator, one.function, one.line, one.column,
            one.line + one.after.count("\n"),
            len(one.after.rpartition("\n")[2]) + (0 if "\n" in one.after else one.column),
            one.after, one.before, one.line, one.line,
        )  # fmt: skip
        assert apply(broken, back) == source
    assert len({one.digest for one in found}) == len(found)


@pytest.mark.parametrize("language", sorted(SOURCES))
def test_the_common_kinds_are_found_in_every_language(language: str) -> None:
    kinds = {one.operator for one in find_bugs(SOURCES[language], language)}
    assert kinds >= COMMON
    assert kinds <= {bug.name for bug in BUGS}


@pytest.mark.parametrize("language", sorted(SOURCES))
def test_bugs_are_named_by_their_function(language: str) -> None:
    functions = {one.function.lower().split("(")[0] for one in find_bugs(SOURCES[language], language)}
    assert all(name.endswith("find") for name in functions)


def test_every_kind_is_found_somewhere() -> None:
    found = {one.operator for language, source in SOURCES.items() for one in find_bugs(source, language)}
    more = "fn f(a: i32) -> i32 { if a & 1 == 0 { for i in 0..=a { g(true); } } a + 1 }"
    found |= {one.operator for one in find_bugs(more, "rust")}
    assert found == {bug.name for bug in BUGS}


def test_tests_beside_the_code_imports_types_and_text_are_left_alone() -> None:
    rust = find_bugs(SOURCES["rust"], "rust")
    assert max(one.line for one in rust) < SOURCES["rust"].splitlines().index("#[cfg(test)]") + 1
    script = "import {a} from '1';\nfunction f(): Array<1> { const s = '1 < 2'; /* 3 < 4 */ return g`5 < ${s}`; }\n"
    assert {one.operator for one in find_bugs(script, "typescript")} <= {"lost-result", "removed-statement"}


def test_code_outside_functions_and_functions_that_do_not_parse_are_left_alone() -> None:
    assert find_bugs("const a = 1 < 2;\n", "javascript") == []
    broken = "int f(int a) { return a < ; }\nint g(int a) { return a < 2; }\n"
    assert {one.function for one in find_bugs(broken, "c")} <= {"g"}


def test_a_language_without_a_grammar_is_refused() -> None:
    with pytest.raises(ValueError, match="'cobol'; it must be one of"):
        find_bugs("", "cobol")  # type: ignore[arg-type]


TEXT = st.text(st.sampled_from("fn(){};=<>&|!ab1 \n\té\"'/*+-"), max_size=80)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.sampled_from(sorted(SOURCES)), TEXT, st.integers(0, 600))
def test_any_text_gives_bugs_that_apply(language: str, noise: str, at: int) -> None:
    source = SOURCES[language][:at] + noise + SOURCES[language][at:]
    for one in find_bugs(source, language)[:20]:
        assert apply(source, one) != source
