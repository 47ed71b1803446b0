import os
from pathlib import Path

import pytest
from envgym_environments.code_repair.sources import Package, fetch, layout_of, licence_of, packages, source_tree

from envgym.errors import InfrastructureFailure


def entries(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def test_the_recipe_has_at_least_forty_five_packages_and_four_held_out_ones() -> None:
    found = packages()
    assert len(found) >= 45
    held_out = {package.name for package in found if package.split == "heldout"}
    assert len(held_out) >= 4
    assert not held_out & {package.name for package in found if package.split == "train"}


def test_every_package_of_the_recipe_says_its_licence_and_why_a_test_does_not_run() -> None:
    known = ("MIT", "BSD", "Apache", "Zope")
    for package in packages():
        assert package.licence.startswith(known), package.name
        assert all(len(why) > 3 for why in package.deselect.values()), package.name


def test_the_licence_is_the_expression_else_the_classifiers_else_the_field(tmp_path) -> None:
    said = tmp_path / "PKG-INFO"
    assert licence_of(tmp_path) == ""
    said.write_text("Metadata-Version: 2.1\nLicense: MIT\n\nLicense: none\n")
    assert licence_of(tmp_path) == "MIT"
    said.write_text(said.read_text().replace("License: MIT", "Classifier: License :: OSI Approved :: BSD License"))
    assert licence_of(tmp_path) == "BSD License"
    said.write_text("License-Expression: MIT OR BSD-3-Clause\nClassifier: License :: Other\n\n")
    assert licence_of(tmp_path) == "MIT OR BSD-3-Clause"


def test_another_licence_than_the_recipe_s_is_refused_and_leaves_nothing(small: Package, cache: Path) -> None:
    with pytest.raises(ValueError, match="licence is '', but"):
        source_tree(small.model_copy(update={"licence": "MIT"}), cache=cache)
    assert not list((cache / "trees").iterdir())


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_fetched_distribution_is_kept_and_not_fetched_again(small: Package, index: Path, tmp_path: Path) -> None:
    offline = ("--no-index", "--find-links", str(index))
    kept = fetch(small, cache=tmp_path / "new", pip_arguments=offline)
    assert kept.read_bytes() == (index / "small-1.0.tar.gz").read_bytes()
    os.unlink(index / "small-1.0.tar.gz")
    assert fetch(small, cache=tmp_path / "new", pip_arguments=offline) == kept


@pytest.mark.timeout(120)
def test_a_wrong_hash_is_refused_with_both_hashes_and_leaves_nothing(
    small: Package, index: Path, tmp_path: Path
) -> None:
    wrong = small.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(ValueError, match=f"{small.sha256}.*{'0' * 64}"):
        fetch(wrong, cache=tmp_path / "new", pip_arguments=("--no-index", "--find-links", str(index)))
    assert entries(tmp_path / "new") == []


@pytest.mark.timeout(120)
def test_an_index_without_the_package_is_the_worlds_fault(small: Package, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFailure, match=r"small-1\.0"):
        fetch(small, cache=tmp_path / "new", pip_arguments=("--no-index", "--find-links", str(tmp_path)))
    assert entries(tmp_path / "new") == []


def test_a_damaged_cache_entry_is_refused(small: Package, cache: Path) -> None:
    kept = fetch(small, cache=cache)
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(ValueError, match="sha256"):
        source_tree(small, cache=cache)
    assert not (cache / "trees").exists()


def test_a_tree_is_whole_and_made_once(small: Package, cache: Path) -> None:
    tree = source_tree(small, cache=cache)
    layout = layout_of(small, tree)
    assert layout.tests == ("tests/test_small.py",)
    names = entries(tree)
    assert "small.py" in names
    assert any("pytest" in name for name in names)
    made = tree.stat().st_mtime_ns
    assert source_tree(small, cache=cache).stat().st_mtime_ns == made
    assert os.listdir(cache / "trees") == [tree.name]


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "small-1.0/../../evil.py"])
def test_an_archive_that_leaves_its_directory_is_refused(
    name: str, small: Package, cache: Path, tmp_path: Path, write_sdist
) -> None:
    digest = write_sdist(tmp_path / "evil.tar.gz", {"small-1.0/small.py": "", name: "x"})
    evil = small.model_copy(update={"sha256": digest})
    kept = cache / "sdists" / f"{evil.slug}-{digest[:16]}.tar.gz"
    (tmp_path / "evil.tar.gz").rename(kept)
    with pytest.raises(ValueError, match=r"refused member|top entries|matches no file"):
        source_tree(evil, cache=cache)
    assert os.listdir(cache / "trees") == []
    assert not list(tmp_path.rglob("evil.py"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[package]]\nname = 'a'", "package 0.*version"),
        ("[[package", "not TOML"),
        (
            "[[package]]\nname='a'\nversion='1'\nsha256='x'\npackage='a'\ntests=['t']",
            r"package 0 \(a\): sha256.*'x'",
        ),
        (
            ("[[package]]\nname='a'\nversion='1'\npackage='a'\ntests=['t']\nsha256='" + "0" * 64 + "'\n") * 2,
            "2 times",
        ),
    ],
)
def test_a_bad_recipe_names_entry_and_field(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "packages.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        packages(path)


def test_a_pattern_that_matches_nothing_is_named(small: Package, cache: Path) -> None:
    tree = source_tree(small, cache=cache)
    with pytest.raises(ValueError, match="nothing_"):
        layout_of(small.model_copy(update={"tests": ("nothing_*.py",)}), tree)
