"""A server and its client on two networks that a cable joins: two network namespaces and a veth pair."""

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(90)]

HERE, THERE = "198.18.77.1", "198.18.77.2"
CLIENT = """
import asyncio, sys
from envgym.errors import SandboxUnavailable
from envgym.task import Tree, World
from envgym_sandboxes.remote import RemoteBackend

async def main():
    address, token, ca, tree, target = sys.argv[1:]
    how = {"tls_ca": ca} if ca else {"plain": True}
    async with RemoteBackend(address, token_file=token, **how) as client:
        async with await client.create(World(trees=(Tree(source=tree, target="/work/tree"),))) as sandbox:
            print((await sandbox.exec("cat tree/file; cd tree; echo changed > file")).text.strip())
            async with await sandbox.fork() as fork:
                print((await fork.exec("cat file")).text.strip())
            await sandbox.get("tree", target)

asyncio.run(main())
"""


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def networks():
    """Two network namespaces' names; one command of each reaches the other's address."""
    if os.geteuid() != 0:
        pytest.skip("not root: network namespaces that are joined need it")
    for tool in ("ip", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}: install iproute2 and util-linux")
    names = [f"envgym-test-{os.getpid()}-{side}" for side in "ab"]
    cable = [f"eg{os.getpid() % 100_000}{side}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for name, end, address in zip(names, cable, (HERE, THERE), strict=True):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/30", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [("nsenter", f"--net=/run/netns/{name}", "--") for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", cable[0]], check=False, capture_output=True)


def certificate(folder):
    cert, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=there", "-addext", f"subjectAltName=IP:{THERE}", "-days", "2", "-nodes"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command = ["openssl", "req", "-x509", *kind, *subject, "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.mark.slow
@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_sandboxes_are_used_from_another_network(networks, serve, namespace, tmp_path, tls):
    here, there = networks
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("from here\n")
    cert, key = certificate(tmp_path)
    how = ("--tls-cert", str(cert), "--tls-key", str(key)) if tls else ("--plain",)
    token = tmp_path / "token"
    with serve(token, *namespace, *how, "--listen", f"{THERE}:0", prefix=there) as served:
        target = tmp_path / "back"
        arguments = [served.address, str(token), str(cert) if tls else "", str(tree), str(target)]
        command = [*here, sys.executable, "-c", CLIENT, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout) == (0, "from here\nchanged\n"), done.stderr
        assert (target / "file").read_text() == "changed\n"
        assert (tree / "file").read_text() == "from here\n"
        alone = subprocess.run(command[len(here) :], capture_output=True, text=True, check=False, timeout=60)
        assert "SandboxUnavailable" in alone.stderr, "from a third network nobody reaches it"


@pytest.mark.slow
def test_a_cable_that_is_cut_is_noticed(networks, serve, namespace, tmp_path):
    here, there = networks
    script = CLIENT.partition("async def main")[0] + (
        "import subprocess\n"
        "async def main():\n"
        "    address, token, name = sys.argv[1:]\n"
        "    client = RemoteBackend(address, token_file=token, plain=True, patience_s=1.0)\n"
        "    sandbox = await client.create(World())\n"
        "    running = asyncio.ensure_future(sandbox.exec(['sleep', '4244']))\n"
        "    await sandbox.exec('true')\n"
        "    subprocess.run(['ip', 'link', 'set', name, 'down'], check=True)\n"
        "    try:\n"
        "        await running\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__)\n"
        "    await client.close()\n"
        "asyncio.run(main())\n"
    )
    token = tmp_path / "token"
    with serve(token, *namespace, "--plain", "--listen", f"{THERE}:0", prefix=there) as served:
        cable = f"eg{os.getpid() % 100_000}a"
        command = [*here, sys.executable, "-c", script, served.address, str(token), cable]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout) == (0, "SandboxDied\n"), done.stderr
