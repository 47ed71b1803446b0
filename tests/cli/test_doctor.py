"""Which backend `auto` takes, and that the doctor says why: a pure function of what the backends say."""

import pytest

from envgym.cli.doctor import choose_auto
from envgym.registry import AUTO_ORDER, make_backend, names, register, unregister
from envgym.sandbox import BackendReport


def reports(*working, **missing):
    known = [*AUTO_ORDER, "local"]
    return [
        BackendReport(backend=name, works=name in working, missing=(missing.get(name, "something"),))
        for name in known
    ]


@pytest.mark.parametrize(
    ("working", "taken"),
    [
        (AUTO_ORDER, "namespace"),
        (("landlock", "docker", "local"), "landlock"),
        (("docker", "local"), "docker"),
        (("local",), None),
        ((), None),
    ],
)
def test_auto_takes_the_first_that_works_and_never_what_does_not_isolate(working, taken):
    assert choose_auto(reports(*working))[0] == taken


def test_the_reason_names_what_is_wrong_with_those_before():
    why = choose_auto(reports("landlock", namespace="user.max_user_namespaces is 0"))[1]
    assert why.startswith("namespace does not work: user.max_user_namespaces is 0; it works here")
    why = choose_auto(reports(namespace="a", landlock="b", docker="c"))[1]
    assert why.startswith("namespace does not work: a; landlock does not work: b; docker does not work: c; name")
    assert choose_auto([])[1].startswith("namespace is not installed")


class Says:
    """A backend that only reports."""

    def __init__(self, works: bool) -> None:
        self.works = works

    def report(self) -> BackendReport:
        return BackendReport(backend="x", works=self.works, missing=("this",), fix=("that",))


def test_auto_goes_on_after_a_backend_whose_extra_is_not_installed(monkeypatch):
    def absent() -> Says:
        raise ImportError("no module named docker; install the extra it needs")

    monkeypatch.setattr("envgym.registry.AUTO_ORDER", ("absent-one", "works-one"))
    register("sandboxes", "absent-one", absent)
    register("sandboxes", "works-one", lambda: Says(True))
    try:
        assert make_backend("auto").report().works
    finally:
        for name in ("absent-one", "works-one"):
            unregister("sandboxes", name)
    assert set(AUTO_ORDER) <= set(names("sandboxes"))
