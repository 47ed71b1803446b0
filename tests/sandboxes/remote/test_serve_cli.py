"""`envgym sandboxes serve` as a shell meets it: what it prints, and how a mistake is said."""

import signal
from dataclasses import dataclass

import pytest
from envgym_sandboxes.remote.cli import sandboxes_command

from envgym.cli import run as run_command
from envgym.errors import InfrastructureFailure
from envgym.registry import names, register
from envgym.task import World

pytestmark = pytest.mark.timeout(60)


@dataclass(frozen=True, slots=True)
class Ran:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def serve(capsys):
    """A run of the command line that ends, whether or not the entry point is installed; who serves never does."""

    def call(*arguments):
        if "sandboxes" not in names("commands"):
            register("commands", "sandboxes", sandboxes_command)
        code = run_command(["sandboxes", "serve", *map(str, arguments)])
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return call


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--listen", "0.0.0.0:0"), "no TLS"),
        (("--listen", "nowhere"), "no address"),
        (("--tls-cert", "cert.pem"), "give both"),
        (("--backend", "nothing-of-the-kind"), "unknown sandbox"),
        (("--backend", "local", "--backend-option", "rot=x"), "rot"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(serve, tmp_path, options, said):
    backend = () if "--backend" in options else ("--backend", "local")
    done = serve("--token-file", tmp_path / "token", *backend, *options)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_that_others_can_read_is_refused(serve, tmp_path):
    (tmp_path / "token").write_text("x" * 64)
    (tmp_path / "token").chmod(0o644)
    done = serve("--token-file", tmp_path / "token", "--backend", "local")
    assert done.returncode == 2
    assert "chmod 600" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "an address"),
        (("--backend-option", "address=127.0.0.1:1", "--backend-option", "token=" + "t" * 32), "127.0.0.1:1"),
    ],
)
def test_a_backend_that_does_not_work_is_not_served(serve, tmp_path, options, said):
    done = serve("--token-file", tmp_path / "token", "--backend", "remote", *options)
    assert done.returncode == 1, done.stderr
    assert "remote sandboxes cannot be served here: missing" in done.stderr
    assert said in done.stderr
    assert "envgym sandboxes serve" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == "", "no address was promised"


@pytest.mark.slow
def test_the_first_line_is_the_address_and_an_interrupt_is_an_orderly_end(serving, state):
    served = serving("--backend", "local", "--backend-option", f"root={state}")
    host, _colon, port = served.address.partition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert served.token_file.stat().st_mode & 0o777 == 0o600
    assert served.client().report().missing, "what the local backend lacks is said"
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(20) == 0
    assert sorted(state.iterdir()) == []


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ("sandboxs=3", "sandboxs: there is no such bound; there are"),
        ("sandboxes=many", "sandboxes=many: it must be a number"),
        ("sandboxes=0", "ServerBounds.sandboxes is 0; it must be positive"),
        ("sandboxes", "not of the form name=value"),
    ],
)
def test_a_wrong_bound_is_named(serve, bound, said, tmp_path):
    done = serve("--token-file", tmp_path / "token", "--bound", bound)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_bound_holds_for_clients(serving, namespace, run):
    served = serving(*namespace, "--bound", "sandboxes=1")

    async def main():
        async with served.client() as client:
            await client.create(World())
            with pytest.raises(InfrastructureFailure, match="1 sandboxes"):
                await client.create(World())

    run(main())
