"""A run over many hosts: what is placed where, what happens to what is lost, and what is left."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("ray", reason="pip install 'envgym[cluster]'")

from envgym_agents.learn.again import RESTARTS  # noqa: E402
from envgym_agents.learn.cluster.begun import Member  # noqa: E402
from envgym_agents.learn.cluster.keeper import ENDED, SAID  # noqa: E402
from envgym_agents.learn.cluster.members import Members  # noqa: E402
from envgym_agents.learn.cluster.placement import (  # noqa: E402
    LEARNER,
    SAMPLER,
    WORKER,
    Need,
    Node,
    Placed,
    place,
    placement_lines,
    wanted,
)
from envgym_agents.learn.cluster.reach import reached  # noqa: E402
from envgym_agents.learn.config import load  # noqa: E402
from envgym_agents.learn.config_cluster import Cluster  # noqa: E402
from envgym_agents.learn.facts import Facts  # noqa: E402
from envgym_agents.learn.plan import plan_of  # noqa: E402
from envgym_agents.learn.run import train  # noqa: E402
from envgym_sandboxes.state import default_root  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from envgym.cli import run  # noqa: E402
from envgym.errors import InfrastructureFailure, WorkersLost  # noqa: E402
from envgym.store import StoreReader  # noqa: E402

# -- placement -------------------------------------------------------------------------------------------------

nodes_of = st.lists(st.integers(0, 6), min_size=1, max_size=5).map(
    lambda cpus: [Node(f"n{k}", f"host-{k}", float(count)) for k, count in enumerate(cpus)]
)


@given(nodes_of, st.integers(1, 12), st.integers(1, 3), st.sampled_from(["spread", "pack"]))
def test_what_is_placed_has_room_and_only_what_has_none_is_refused(nodes, workers, cpus, how):
    needs = [Need(WORKER, number, float(cpus)) for number in range(workers)]
    room = sum(int(node.cpus) // cpus for node in nodes)
    if room < workers:
        with pytest.raises(ValueError, match=f"room for {room} of {workers} worker"):
            place(needs, nodes, how)
        return
    placed = place(needs, nodes, how)
    assert [one.need for one in placed] == needs
    count = Counter(one.node.id for one in placed)
    assert all(count[node.id] * cpus <= node.cpus for node in nodes)
    if how == "spread":  # nobody has two more than a node that has room for one more
        free = [count[node.id] for node in nodes if node.cpus - count[node.id] * cpus >= cpus]
        assert not free or max(count.values()) - min(free) <= 1
    else:
        used = [k for k, node in enumerate(nodes) if count[node.id]]
        assert all(int(nodes[k].cpus) // cpus == count[nodes[k].id] for k in range(used[-1]))


def test_a_plan_says_who_is_beside_whom_and_what_stays_here():
    cluster = Cluster(workers=3, samplers=1, gpus=1.0)
    nodes = [Node("a", "host-a", 4.0, 1.0), Node("b", "host-b", 2.0)]
    placed = place(wanted(cluster), nodes, "spread")
    assert (placed[0].need.kind, placed[0].node.id) == (SAMPLER, "a")
    lines = placement_lines(placed, nodes, here=2, where="a test's")
    assert "host-a: sampler 0, worker 0, worker 2; 3 of 4 free CPU, 1 of 1 GPU" in lines[1]
    assert "host-b: worker 1; 1 of 2 free CPU" in lines[2]
    assert "outside Ray: the learner's 2 processes" in lines[3]
    cluster = Cluster(workers=2, learners=2, learner_memory_mib=100)
    nodes = [Node("a", "host-a", 2.0, memory=100 << 20), Node("b", "host-b", 3.0, memory=150 << 20)]
    placed = place(wanted(cluster), nodes, "pack")
    assert [one.name for one in placed if one.need.kind == LEARNER] == [
        "learner 0 on host-a",
        "learner 1 on host-b",
    ]
    lines = placement_lines(placed, nodes, here=1, where="")
    assert "host-a: learner 0, worker 0 with its sampler; 2 of 2 free CPU" in lines[1]
    assert "outside Ray: a copy of the weights, the store" in lines[3]
    alone = place(wanted(Cluster(workers=1)), nodes, "pack")
    assert "worker 0 with its sampler" in placement_lines(alone, nodes, here=1, where="")[1]


def test_a_plan_counts_a_learner_where_it_is_placed_and_refuses_a_node_that_cannot_hold_it():
    config = load(base={"cluster": {"learners": 2}})
    facts = Facts(10**8, 10**8, layers=2, hidden=64, inner=256, heads=4, kv_width=64, vocabulary=1000)
    nodes = [Node("a", "host-a", 1.0, memory=1 << 40), Node("b", "host-b", 1.0, memory=1 << 20)]
    plan = plan_of(config, facts, there=1 << 40, rate=1e9, placed=place(wanted(config.cluster), nodes, "spread"))
    here, *far = plan.devices
    assert [device.holds for device in far] == ["learner 0", "learner 1"]
    assert here.memory.optimizer == 0
    assert all(device.memory.optimizer == 8 * 10**8 // 2 for device in far)
    with pytest.raises(ValueError, match=r"node host-b has 1\.0 MiB free"):
        plan.check()


@pytest.mark.slow
def test_the_command_plans_a_cluster_without_starting_one_and_refuses_what_it_cannot_hold(capsys):
    common = ["train", "--plan", "--out", "none", "--set", "cluster.host_cpus=2"]
    assert run([*common, "--set", "cluster.workers=2"]) == 0
    said = capsys.readouterr().out
    assert "worker 0 with its sampler, worker 1 with its sampler; 2 of 2 free CPU" in said
    assert "played by 2 worker(s) that Ray places" in said
    assert run([*common, "--set", "cluster.workers=3"]) != 0
    refusal = capsys.readouterr().err.strip()
    assert "room for 2 of 3 worker(s)" in refusal
    assert len(refusal.splitlines()) == 1
    assert run([*common, "--set", "cluster.learners=1", "--set", "cluster.workers=1"]) == 0
    said = capsys.readouterr().out
    assert "learner 0, worker 0 with its sampler; 2 of 2 free CPU" in said
    assert "learner over 1 process(es) that Ray places (FSDP2)" in said
    assert "this host, outside Ray: a copy of the weights, the store of all episodes, critics" in said
    assert run([*common, "--set", "cluster.learners=2", "--set", "cluster.learner_memory_mib=100000000"]) != 0
    refusal = capsys.readouterr().err.strip()
    assert "room for 0 of 2 learner(s) of 1 CPU and 100000000 MiB each" in refusal
    assert len(refusal.splitlines()) == 1


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"cluster": {"samplers": 1}}, "samplers 1 has no use where cluster.workers is 0"),
        ({"cluster": {"workers": 1, "sampler_cpus": 2}}, "no use where cluster.samplers is 0"),
        ({"cluster": {"workers": 1, "address": "auto", "host_cpus": 2}}, "a cluster is joined"),
        ({"cluster": {"learner_gpus": 1}}, "no use where cluster.workers and cluster.learners are 0"),
        ({"cluster": {"workers": 1, "learner_cpus": 2}}, "no use where cluster.learners is 0"),
        ({"cluster": {"learners": 1, "restarts": 2}}, "no use where cluster.workers is 0"),
        ({"cluster": {"learners": 2}, "learner": {"processes": 2}}, "leave one of them out"),
        ({"cluster": {"workers": 1}, "snapshot_every": 2}, "snapshots are of one host"),
        ({"cluster": {"workers": 1, "address": "ray://host:10001"}}, 'an address is "auto" or host:port'),
    ],
)
def test_a_setting_that_could_not_be_honoured_is_refused(values, told):
    with pytest.raises(ValueError, match=told):
        load(base=values)


def test_an_address_where_nothing_answers_is_said_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))  # and does not listen
        address = "{}:{}".format(*taken.getsockname())
        with pytest.raises(
            InfrastructureFailure, match=f"nothing answers at '{address}' .*refused; waited 0"
        ) as told:
            reached(address)
    assert "ray start --head" in str(told.value)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_an_address_where_something_else_listens_is_said_at_once(said):
    with socket.create_server(("127.0.0.2", 0)) as server:
        address = "{}:{}".format(*server.getsockname())

        def answer() -> None:
            line, _ = server.accept()
            with line:
                line.recv(100)
                line.sendall(said)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(InfrastructureFailure, match=f"what listens at '{address}' is no Ray cluster"):
            reached(address)
        answering.join()


@pytest.mark.slow
def test_auto_where_no_cluster_runs_is_said_at_once(tmp_path):
    """In a process namespace of its own: other tests' clusters are none of its."""
    ask = "from envgym_agents.learn.cluster.reach import reached; reached('auto')"
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", ask]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        command, env=env | {"RAY_TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "cluster.address 'auto': no Ray cluster runs on this host" in done.stderr.splitlines()[-1]


def test_nobody_waits_for_workers_that_cannot_come():
    asyncio.run(_nobody_waits())


async def _nobody_waits() -> None:
    members = Members(WORKER, each=1)
    one = Member(Placed(Need(WORKER, 0, 1.0), Node("a", "host-a", 1.0)), actor=None)
    members.add(one)
    assert await members.take() is one
    members.awaited(+1)
    waiting = asyncio.create_task(members.take())
    await asyncio.sleep(0)
    members.drop(one, "killed")
    await asyncio.sleep(0)
    assert not waiting.done()  # somebody is coming
    members.awaited(-1)
    with pytest.raises(WorkersLost, match="worker 0 on host-a: killed"):
        await waiting


# -- runs ------------------------------------------------------------------------------------------------------

BASE = {
    "env": "guess", "tasks": 20, "turns": 6, "expert": "random", "threads": 1, "concurrency": 1,
    "model": {"size": "tiny", "vocabulary": 600, "context": 256, "answer": 64},
    "warm_start": dict(
        imitate="all", min_updates=5, max_updates=10, evaluate_every=5, rows=8, validation=0.2, warmup=2
    ),
    "reinforce": dict(
        steps=6, tasks=2, group=4, oversample=1.0, teaches="all", checkpoint_every=2, loop={"staleness": 0}
    ),
    "evaluate": {"baselines": [], "tasks": 2, "greedy": False, "bootstrap": 200, "cluster": "id"},
}  # fmt: skip

HOSTS = """
import sys, time
from pathlib import Path
from ray.cluster_utils import Cluster

folder = Path(sys.argv[1])
small = {"object_store_memory": 100 << 20, "include_log_monitor": False}
cluster = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
nodes = [None] * 3
while True:
    for number in range(3):
        if not nodes[number] and not (folder / f"lost-{number}").exists():
            nodes[number] = cluster.add_node(num_cpus=2, **small)
        if nodes[number] and (folder / f"lose-{number}").exists():
            (folder / f"lose-{number}").unlink()
            cluster.remove_node(nodes[number], allow_graceful=False)
            nodes[number] = None
            (folder / f"lost-{number}").touch()
    raylets = [node.all_processes["raylet"][0].process.pid if node else 0 for node in nodes]
    (folder / "new").write_text(" ".join([cluster.address, *map(str, raylets)]))
    (folder / "new").rename(folder / "here")
    time.sleep(0.05)
"""
"""Three nodes beside a head that does nothing. A node whose file "lose" appears is killed, all its processes at
once; another takes its place when the file "lost" is gone."""


class Hosts:
    """A cluster of three nodes on this host."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.env = folder, env
        wait_for(lambda: (folder / "here").exists() or (folder / ENDED).exists(), 240)
        assert not (folder / ENDED).exists(), (folder / SAID).read_text()
        self.address = (folder / "here").read_text().split()[0]

    @property
    def raylets(self) -> list[int]:
        """The process of each node; 0 for one that was lost."""
        return [int(pid) for pid in (self.folder / "here").read_text().split()[1:]]

    def of(self, name: str) -> list[tuple[int, int]]:
        """(node, process) of the actors whose class begins so, on nodes that live."""
        raylets = self.raylets
        found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        named = [pid for pid in found if name_of(pid).startswith(f"ray::{name}")]
        return sorted((raylets.index(parent(pid)), pid) for pid in named if parent(pid) in raylets)

    def workers(self) -> list[int]:
        """The processes of rollout workers."""
        return [pid for _, pid in self.of("RolloutW")]

    def whole(self) -> None:
        """Have three nodes again."""
        for lost in self.folder.glob("lost-*"):
            lost.unlink()
        wait_for(lambda: all(self.raylets), 240)

    def lose(self, number: int) -> None:
        """Kill a node."""
        (self.folder / f"lose-{number}").touch()
        wait_for(lambda: (self.folder / f"lost-{number}").exists(), 120)


def wait_for(true, within_s: float) -> None:
    until = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until, "it did not come to pass within the time"
        time.sleep(0.02)


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def started(pid: int) -> int:
    """When a process began, in ticks; 0 for one that is gone. Its number alone is soon given to another."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


@pytest.fixture(scope="module")
def place_of_runs():
    """A folder whose name is short: the paths of Ray's sockets begin with it."""
    folder = Path(tempfile.mkdtemp(prefix="et-", dir="/tmp"))
    yield folder
    assert not [entry for entry in folder.iterdir() if entry.name.startswith("eg-ray-")]
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def hosts(place_of_runs):
    ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    env = {**os.environ, **ray, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "OMP_NUM_THREADS": "1"}
    folder = place_of_runs / "r"
    (folder / "ray").mkdir(parents=True)
    line, ours = os.pipe()
    command = [sys.executable, "-m", "envgym_agents.learn.cluster.keeper", str(line), str(folder)]
    keeper = subprocess.Popen(
        [*command, sys.executable, "-c", HOSTS, str(folder)],
        pass_fds=[line],
        env={**env, "RAY_TMPDIR": str(folder)},
    )
    os.close(line)
    try:
        there = Hosts(folder, env)
        there.whole()
        yield there
    finally:
        os.close(ours)
        keeper.wait(60)
    assert not folder.exists()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of the same run without Ray, one episode after the other."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    train(load(base=BASE), folder)
    return folder


@contextmanager
def running(out: Path, env: dict[str, str], values: dict, *changes: str, resume: bool = False):
    """`envgym train` in a process of its own; killed if it is still there at the end."""
    out.parent.mkdir(exist_ok=True)
    config = out.parent / f"{out.name}.json.toml"
    config.write_text("\n".join(toml(values)))
    options = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "envgym", "train", "--config", str(config), "--out", str(out), *options]
    command += ["--resume"] if resume else []
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=heeds_interrupts
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def heeds_interrupts() -> None:
    """A shell's background jobs ignore them, and what they start does too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def toml(values: dict, name: str = "") -> list[str]:
    plain = [f"{key} = {json.dumps(value)}" for key, value in values.items() if not isinstance(value, dict)]
    lines = ([f"[{name}]"] if name else []) + plain
    for key, value in values.items():
        if isinstance(value, dict):
            lines += toml(value, f"{name}.{key}" if name else key)
    return lines


def steps_of(out: Path) -> list[dict]:
    path = out / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def episodes_of(out: Path) -> dict:
    found = list(StoreReader(out / "trajectories"))
    by_id = {episode.id: episode for episode in found}
    assert len(by_id) == len(found)
    return by_id


OTHER = """
import json, sys
from ray._raylet import GcsClient

place = {"namespace": b"cluster"}
client = GcsClient(address=sys.argv[1])
found = json.loads(client.internal_kv_get(b"CLUSTER_METADATA", **place))
said = json.dumps(found | {"ray_version": sys.argv[2]}).encode()
client.internal_kv_put(b"CLUSTER_METADATA", said, True, **place)
print(found["ray_version"])
"""
"""A cluster says that it is of another version of Ray."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_of_another_version_is_said_in_one_line(hosts):
    def say(version: str) -> str:
        command = [sys.executable, "-c", OTHER, hosts.address, version]
        return subprocess.run(command, env=hosts.env, capture_output=True, text=True, check=True).stdout.strip()

    command = [sys.executable, "-m", "envgym", "train", "--plan", "--out", "none"]
    options = ["--set", "cluster.workers=1", "--set", f"cluster.address={hosts.address}"]
    own = say("1.2.3")
    try:
        done = subprocess.run([*command, *options], env=hosts.env, capture_output=True, text=True, check=False)
    finally:
        say(own)
    assert done.returncode != 0
    (line,) = done.stderr.strip().splitlines()
    assert "Version mismatch" in line
    assert "1.2.3" in line
    assert "make both versions equal" in line


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_on_ray_that_loses_a_worker_plays_what_the_run_without_ray_plays(hosts, alone, place_of_runs):
    out = place_of_runs / "same"
    changes = (f"cluster.address={hosts.address}", "cluster.workers=2", "cluster.samplers=1", "concurrency=2")
    with running(out, hosts.env, BASE, *changes) as process:
        wait_for(lambda: len(steps_of(out)) >= 2 or process.poll() is not None, 400)
        killed = hosts.workers()[0]
        os.kill(killed, signal.SIGKILL)
        _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    assert " is lost: " in said
    one, other = episodes_of(alone), episodes_of(out)
    assert one.keys() == other.keys()  # every prompt once, with nothing twice and nothing lost
    for name, episode in one.items():
        assert len(episode.turns) == len(other[name].turns)
        for turn, same in zip(episode.turns, other[name].turns, strict=True):
            assert np.array_equal(turn.sampled_ids, same.sampled_ids)
            assert np.allclose(turn.logprobs, same.logprobs, atol=1e-5)
    before, after = (load_file(folder / "trained" / "model.safetensors") for folder in (alone, out))
    assert all(torch.allclose(before[key], after[key], atol=1e-5) for key in before)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_continuations_on_ray_are_those_of_a_run_that_forks_in_its_own_process(hosts, place_of_runs, tmp_path):
    forks = {"members": {"forks": {"points": 1, "times": 2}}, "steps": 2, "group": 2}
    values = BASE | {"reinforce": BASE["reinforce"] | forks}
    train(load(base=values), tmp_path / "run")
    out = place_of_runs / "forks"
    changes = (f"cluster.address={hosts.address}", "cluster.workers=2", "cluster.samplers=1")
    with running(out, hosts.env, values, *changes) as process:
        _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    one, other = episodes_of(tmp_path / "run"), episodes_of(out)
    assert one.keys() == other.keys()
    assert sum(episode.parent is not None for episode in one.values()) >= 8
    for name, episode in one.items():
        assert (episode.parent, episode.root, episode.failure) == (
            other[name].parent, other[name].root, other[name].failure,
        )  # fmt: skip
        for turn, same in zip(episode.turns, other[name].turns, strict=True):
            assert np.array_equal(turn.sampled_ids, same.sampled_ids)
            assert np.allclose(turn.logprobs, same.logprobs, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_loses_a_node_goes_on_and_counts_every_prompt_once(hosts, alone, place_of_runs):
    out = place_of_runs / "node"
    bound = 2
    changes = (
        f"cluster.address={hosts.address}", "cluster.workers=3", "concurrency=12", f"model.path={alone / 'warm'}",
        "warm_start.episodes_per_task=0", "warm_start.min_updates=0", "warm_start.max_updates=0",
        "reinforce.steps=60", f"reinforce.loop.staleness={bound}", "evaluate.tasks=1",
    )  # fmt: skip
    with running(out, hosts.env, BASE, *changes) as process:
        wait_for(lambda: len(steps_of(out)) >= 3 or process.poll() is not None, 400)
        hosts.lose(hosts.of("RolloutW")[0][0])
        lost_at = len(steps_of(out))
        _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    assert " is lost: " in said
    steps = steps_of(out)
    assert lost_at < 60
    assert [line["step"] for line in steps] == list(range(1, 61))
    assert max(line["staleness_max"] for line in steps if "staleness_max" in line) <= bound
    played = [episode for name, episode in episodes_of(out).items() if name.startswith("a0")]
    assert all(episode.failure is None for episode in played)
    # the account of the last step's checkpoint, which is written before anything else can come back
    stored = json.loads((out / "checkpoints" / "reinforce" / "step-000060" / "progress.json").read_text())
    facts = stored["queue"]["facts"]
    counts, begun = facts["counters"]["counter"], facts["counters"]["counter"]["started"]
    played_now = {ticket["number"] for ticket in facts["tickets"]}
    waiting = {name.split("-")[0] for name in stored["queue"]["episodes"]}
    # a step is short of groups where too many in a row taught nothing, which a busy machine decides
    trained, nothing = counts["trained"], counts.get("abandoned", 0)
    assert 60 < trained <= 60 * 2
    assert begun == trained + nothing + counts.get("swept", 0) + len(waiting) + len(played_now)  # once each
    members = Counter(int(episode.group[1:]) for episode in played)
    assert {number for number in range(begun) if members[number] != 4} <= played_now
    assert max(members) < begun
    assert max(members.values()) == 4  # of no group was a member played under two names


def assert_learned_alike(one: Path, other: Path) -> None:
    """The same episodes once each, the same losses and weights to 1e-5."""
    here, there = episodes_of(one), episodes_of(other)
    assert here.keys() == there.keys()
    for name, episode in here.items():
        for turn, same in zip(episode.turns, there[name].turns, strict=True):
            assert np.array_equal(turn.sampled_ids, same.sampled_ids)
    losses = [{line["step"]: line["loss"] for line in steps_of(folder)} for folder in (one, other)]
    assert losses[0].keys() == losses[1].keys() == set(range(1, 7))
    assert all(losses[1][step] == pytest.approx(loss, rel=1e-5, abs=1e-6) for step, loss in losses[0].items())
    before, after = (load_file(folder / "trained" / "model.safetensors") for folder in (one, other))
    assert all(torch.allclose(before[key], after[key], atol=1e-5) for key in before)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_learners_on_two_nodes_of_which_one_is_lost_learn_what_one_process_learns_and_go_on_from_its_checkpoint(
    hosts, alone, place_of_runs
):
    hosts.whole()
    out, back, single = (place_of_runs / name for name in ("learners", "back", "single"))
    changes = (f"cluster.address={hosts.address}", "cluster.learners=2")
    with running(out, hosts.env, BASE, *changes) as process:
        wait_for(lambda: len(steps_of(out)) >= 3 or process.poll() is not None, 600)
        ranks = hosts.of("LearnerR")
        assert len({node for node, _ in ranks}) == len(ranks) == 2  # one on each of two nodes
        hosts.lose(ranks[1][0])
        _, said = process.communicate(timeout=600)  # it goes on by itself, on the nodes that are left
    assert process.returncode == 0, said
    assert "Traceback" not in said
    line = json.loads((out / RESTARTS).read_text().splitlines()[0])["lost"]
    assert "of the 2 that the learner is divided over (on " in line
    assert "is gone during" in line
    assert "--resume" in line
    assert_learned_alike(alone, out)
    # what two placed ones have begun, one process finishes; and what one process has begun, two placed ones
    cut_back(out, single)
    train(load(base=BASE), single, resume=True)
    assert_learned_alike(alone, single)
    cut_back(alone, back)
    with running(back, hosts.env, BASE, *changes, resume=True) as process:
        _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert_learned_alike(alone, back)


def cut_back(run: Path, to: Path) -> None:
    """A copy of a finished run, as if it had been killed after the fourth of its six steps."""
    shutil.copytree(run, to)
    shutil.rmtree(to / "trained")
    shutil.rmtree(to / "checkpoints" / "reinforce" / "step-000006")
    lines = (to / "metrics.jsonl").read_text().splitlines(keepends=True)
    (to / "metrics.jsonl").write_text("".join(lines[:4]))
    stored = json.loads((to / "stages.json").read_text())
    kept = {name: one for name, one in stored.items() if name != "reinforce" and "after" not in name}
    (to / "stages.json").write_text(json.dumps(kept))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_loses_every_worker_ends_with_one_line(hosts, alone, place_of_runs):
    out = place_of_runs / "all"
    changes = (
        f"cluster.address={hosts.address}", "cluster.workers=2", "cluster.restarts=0", "concurrency=8",
        f"model.path={alone / 'warm'}", "warm_start.episodes_per_task=0", "warm_start.min_updates=0",
        "warm_start.max_updates=0", "reinforce.steps=5000",
    )  # fmt: skip
    with running(out, hosts.env, BASE, *changes) as process:
        wait_for(lambda: len(steps_of(out)) >= 2 or process.poll() is not None, 400)
        for pid in hosts.workers():
            os.kill(pid, signal.SIGKILL)
        _, said = process.communicate(timeout=200)
    assert process.returncode not in (0, None)
    last = said.strip().splitlines()[-1]
    assert "no worker is left" in last
    assert "--resume" in last
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_left_of_a_cluster_whose_driver_was_killed(alone, place_of_runs):
    out = place_of_runs / "killed"
    env = {**os.environ, "TMPDIR": str(place_of_runs), "OMP_NUM_THREADS": "1"}
    changes = (
        "cluster.workers=1", "cluster.host_cpus=2", f"model.path={alone / 'warm'}", "reinforce.steps=5000",
        "warm_start.episodes_per_task=0", "warm_start.min_updates=0", "warm_start.max_updates=0",
    )  # fmt: skip
    with running(out, env, BASE, *changes) as process:
        wait_for(lambda: len(steps_of(out)) >= 1 or process.poll() is not None, 400)
        (folder,) = place_of_runs.glob("eg-ray-*")
        ours = {pid: started(pid) for pid in below(process.pid) if pid != process.pid}
        assert any(name_of(pid).startswith("ray::RolloutW") for pid in ours)
        process.kill()
        process.wait()
        wait_for(lambda: not folder.exists(), 60)
        wait_for(lambda: not any(began and started(pid) == began for pid, began in ours.items()), 60)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_left_of_the_pools_of_sandboxes_of_workers_of_which_one_was_killed(place_of_runs):
    out = place_of_runs / "pools"
    values = BASE | {
        "env": "python", "sandbox": "pool", "expert": "python-expert", "tasks": 4, "turns": 4,
        "model": {**BASE["model"], "context": 1024}, "reinforce": {**BASE["reinforce"], "steps": 5000},
    }  # fmt: skip
    env = {**os.environ, "TMPDIR": str(place_of_runs), "OMP_NUM_THREADS": "1"}
    changes = ("cluster.workers=2", "cluster.host_cpus=2", "concurrency=4")
    seen: dict[int, set[int]] = {}  # of each worker the processes below it
    begun: dict[int, int] = {}  # when each of them all began
    with running(out, env, values, *changes) as process:

        def has_sandboxes() -> list[int]:
            for pid in below(process.pid):
                if name_of(pid).startswith("ray::RolloutW"):
                    seen.setdefault(pid, set()).update(below(pid)[1:])
                    begun.update({one: started(one) for one in (pid, *seen[pid]) if one not in begun})
            time.sleep(0.2)
            return [pid for pid, inside in seen.items() if inside and kept_of(pid)]

        def another_has() -> bool:
            having = has_sandboxes()
            return len(seen) == 3 and [*seen][2] in having

        wait_for(lambda: has_sandboxes() or process.poll() is not None, 400)
        assert process.poll() is None, process.communicate(timeout=60)[1]
        os.kill(has_sandboxes()[0], signal.SIGKILL)
        wait_for(lambda: another_has() or process.poll() is not None, 400)
        assert process.poll() is None, process.communicate(timeout=60)[1]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=400)
    assert process.returncode == 128 + signal.SIGINT, said
    assert " is lost: " in said
    assert "Traceback" not in said
    played = episodes_of(out)
    assert all(episode.failure is None for episode in played.values())
    assert {episode.reward for name, episode in played.items() if name.startswith("expert")} == {1.0}
    wait_for(lambda: not any(began and started(pid) == began for pid, began in begun.items()), 60)
    assert [entry for owner in (process.pid, *seen) for entry in kept_of(owner)] == []


def kept_of(owner: int) -> list[Path]:
    """What the sandboxes of a process have on this host."""
    return list(default_root().glob(f"{owner}-*"))


def below(pid: int) -> list[int]:
    """The process and all that descend from it; each entry of /proc is read once."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children[parent(int(entry.name))].append(int(entry.name))
    found = [pid]
    for one in found:
        found += children[one]
    return found
