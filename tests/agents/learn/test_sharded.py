"""A learner divided over processes: what it computes, what it leaves, and how it ends when one of them does."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from envgym_agents.learn.again import RESTARTS, going_on  # noqa: E402
from envgym_agents.learn.checkpoint import latest  # noqa: E402
from envgym_agents.learn.config import LearnerMemory, Reinforce, load  # noqa: E402
from envgym_agents.learn.crew import Crew, crew_size  # noqa: E402
from envgym_agents.learn.learns import Learns  # noqa: E402
from envgym_agents.learn.pack import rows_of  # noqa: E402
from envgym_agents.learn.ranks import Ranks  # noqa: E402
from envgym_agents.learn.run import train  # noqa: E402
from envgym_agents.learn.score import Scorer  # noqa: E402
from envgym_agents.learn.scoring import scorer_of  # noqa: E402
from envgym_agents.learn.sharded import ShardedLearner  # noqa: E402
from envgym_agents.learn.student import begin_model  # noqa: E402
from envgym_agents.learn.update import Learner, adamw  # noqa: E402
from envgym_agents.learn.warm_start import with_observations  # noqa: E402
from envgym_agents.learn.worker import Begin, begins_within, interface_of  # noqa: E402
from envgym_agents.model import load_model, save_model  # noqa: E402
from envgym_agents.tokenizer import train_tokenizer  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from envgym.errors import HostLost, LearnerDied  # noqa: E402

LR = 1e-3


def test_every_part_counts_once_and_all_make_as_many_passes():
    for size in (1, 2, 3, 5):
        for count in (1, 2, 4, 7):
            shares = [Ranks(rank, size).own(range(count)) for rank in range(size)]
            assert sorted(part for share in shares for part, counts in share if counts) == list(range(count))
            assert len({len(share) for share in shares}) == 1


def test_torchruns_number_and_the_configured_one_must_be_equal(started_with):
    assert crew_size(3) == 3
    started_with(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    assert crew_size(2) == 2
    with pytest.raises(ValueError, match="torchrun has started 2"):
        crew_size(1)


def test_an_interface_is_found_by_its_address():
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(ValueError, match="no network interface of this host has the address"):
        interface_of("0.0.0.1")


@pytest.fixture
def started_with():
    before = dict(os.environ)
    yield lambda **values: os.environ.update(values)
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module", params=["all weights", "adapters"])
def student(request, tmp_path_factory, model_factory):
    """(configuration, folder) of a tiny model with tied embeddings, and one that trains low-rank adapters."""
    folder = tmp_path_factory.mktemp("student")
    tokenizer = train_tokenizer(["read press open"], actions=["act:read"], vocab_size=300)
    save_model(folder, model_factory(vocabulary=300, tied=request.param == "all weights"), tokenizer)
    rank = 0 if request.param == "all weights" else 2
    if rank:
        pytest.importorskip("peft")
    config = load(base={"model": {"path": str(folder), "lora_rank": rank}, "threads": 1})
    return config, folder


@pytest.fixture(scope="module")
def crew():
    """Two processes, for one learner after the other."""
    with Crew(2, threads=1) as crew:
        yield crew
    assert not any(Path(f"/proc/{pid}").exists() for pid in crew.pids)


@pytest.fixture(scope="module")
def groups(turn, episode):
    """Groups of rows of uneven lengths."""
    rng = np.random.default_rng(0)

    def row(name):
        ids = [int(one) for one in rng.integers(0, 300, 12 + int(rng.integers(0, 9)))]
        made = episode(name, [turn(ids[:5], ids[5:], position=0)])
        credit = np.full(made.sampled_tokens, rng.choice([-1.0, 1.0]), np.float32)
        return rows_of(made, credit)

    return [[one for member in range(3) for one in row(f"{group}-{member}")] for group in range(4)]


def alone(student, **rest) -> Learner:
    config, folder = student
    model, tokenizer = begin_model(config, folder)
    frozen = Scorer(begin_model(config, folder)[0]) if rest.pop("reference", False) else None
    return Learner(
        Scorer(model), adamw(model, lr=LR, weight_decay=0.01), reference=frozen, tokenizer=tokenizer, **rest
    )


def together(student, crew, *, reference=False, **rest) -> ShardedLearner:
    config, folder = student
    scorer = Scorer(begin_model(config, folder)[0])
    return ShardedLearner(scorer, crew, Begin(config, folder, LR, 0.01, folder if reference else None), **rest)


def weights(learner):
    return {name: weight.detach().clone() for name, weight in learner.scorer.model.named_parameters()}


def assert_alike(one: dict, other: dict) -> None:
    """Each matrix to 1e-5 of its norm. AdamW divides a gradient by its size: of one near 0, rounding shows.

    An adapter's second matrix begins at 0 and is made of such steps alone: 2e-5. Gradients themselves are compared
    entry by entry, to less, in the test below.
    """
    assert one.keys() == other.keys()
    for name, weight in one.items():
        most = 2e-5 if "lora_B" in name else 1e-5
        assert (weight - other[name]).norm() <= most * weight.norm(), name


def step(learner: Learns, groups, config, seed) -> dict[str, float]:
    return learner.update(groups, config, np.random.default_rng(seed), lr=LR)


SEPARATE = Reinforce(epochs=1, minibatches=2)
COUPLED = Reinforce(epochs=1, minibatches=1, loss={"ratio": "sequence", "old": "recomputed", "kl": 0.01})


def gradients(learner, folder) -> dict:
    """A tenth of the gradient of each trained weight: what AdamW keeps after the first update, by a checkpoint."""
    learner.save(folder, 1, {})
    stored = torch.load(latest(folder) / "optimizer.pt", weights_only=True)["optimizer"]["state"]
    return {number: stored[number]["exp_avg"] for number in sorted(stored)}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_entry_of_a_gradient_is_that_of_one_process_and_weights_differ_by_what_adamw_makes_of_its_rounding(
    student, groups, crew, tmp_path
):
    """A part that counted twice, or not at all, would show in the gradient, whatever AdamW makes of it.

    AdamW moves an entry by lr times gradient over its size, so two roundings of one that is nearly 0 move it apart.
    """
    config, lr, one, two = Reinforce(epochs=1, minibatches=1), 1e-2, alone(student), together(student, crew)
    for learner in (one, two):
        learner.update(groups, config, np.random.default_rng(0), lr=lr)
    mine, theirs = gradients(one, tmp_path / "one"), gradients(two, tmp_path / "two")
    names = {id(weight): name for name, weight in one.scorer.model.named_parameters()}
    order = [names[id(weight)] for group in one.optimizer.param_groups for weight in group["params"]]
    assert mine.keys() == theirs.keys() == set(range(len(order)))
    here, there = weights(one), weights(two)
    for number, name in enumerate(order):
        apart, size = (mine[number] - theirs[number]).abs(), mine[number].abs()
        assert apart.max() <= 3e-6 * size.max(), name
        explained = lr * (2 * apart / (size + 1e-9)).clamp(max=2)
        assert ((here[name] - there[name]).abs() <= explained + 2e-7).all(), name


def resident(pid: int) -> tuple[int, int]:
    """Bytes that a process holds, and the most that it ever held."""
    lines = dict(line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return tuple(int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_process_of_a_divided_learner_ever_holds_the_model_whole_but_who_saves_it(
    tmp_path, model_factory, started_with
):
    tokenizer = train_tokenizer(["read press open"], actions=["act:read"], vocab_size=300)
    save_model(tmp_path / "small", model_factory(vocabulary=300), tokenizer)
    large = model_factory(vocabulary=300, width=768, layers=10, tied=False)
    save_model(tmp_path / "large", large, tokenizer)
    size = 4 * sum(weight.numel() for weight in large.parameters())
    del large
    config = load(base={"model": {"path": str(tmp_path / "large")}, "threads": 1})
    started_with(MALLOC_MMAP_THRESHOLD_="1000000")  # what is freed is given back, so that holes do not count
    with Crew(2, threads=1) as crew:
        crew.ask("begin", Begin(config, tmp_path / "small", LR, 0.01))  # all is imported now
        before = [resident(pid)[0] for pid in crew.pids]
        crew.ask("begin", Begin(config, tmp_path / "large", LR, 0.01))
        grown = [(resident(pid)[1] - was) / size for pid, was in zip(crew.pids, before, strict=True)]
        assert max(grown) < 0.85, grown  # a half, and what one layer needs to be tried
        crew.ask("save", tmp_path / "left", 1, {})
        assert (resident(crew.pids[1])[1] - before[1]) / size < 0.85  # what the first process saves is not here
        crew.ask("load", latest(tmp_path / "left"))
        assert max((resident(pid)[0] - was) / size for pid, was in zip(crew.pids, before, strict=True)) < 0.85
    found, _ = load_model(latest(tmp_path / "left"), dtype="float32")
    kept, _ = load_model(tmp_path / "large", dtype="float32")
    assert all(torch.equal(one, other) for one, other in zip(found.parameters(), kept.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_in_bfloat16_two_processes_have_the_gradient_of_one_to_its_rounding_and_leave_float32(
    student, groups, crew, tmp_path
):
    config, folder = student
    mixed = config.model_copy(update={"learner": LearnerMemory(precision="bfloat16")}), folder
    once, whole, two = Reinforce(epochs=1, minibatches=1), alone(student), together(mixed, crew)
    model = begin_model(*mixed)[0]
    one = Learner(scorer_of(mixed[0], model), adamw(model, lr=LR, weight_decay=0.01))
    found = []
    for number, learner in enumerate((whole, one, two)):
        learner.update(groups, once, np.random.default_rng(0), lr=LR)
        found.append(gradients(learner, tmp_path / str(number)))
    exact, mine, theirs = (torch.cat([one[number].flatten() for number in sorted(one)]) for one in found)
    for other in (mine, theirs):
        assert other.dtype == torch.float32
        assert 0 < (other - exact).norm() <= 4 * 2.0**-8 * exact.norm()
    assert {weight.dtype for weight in load_file(latest(tmp_path / "2") / "model.safetensors").values()} == {
        torch.float32
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_learn_what_one_learns_and_go_on_from_each_others_checkpoints(
    student, groups, crew, tmp_path
):
    rows = [with_observations(row, 0.1) for group in groups for row in group]
    one = alone(student, reference=True)
    two = together(student, crew, reference=True)
    for number, config in enumerate((SEPARATE, COUPLED, SEPARATE)):
        mine, theirs = step(one, groups, config, number), step(two, groups, config, number)
        for name in ("loss", "grad_norm", "entropy"):
            assert theirs[name] == pytest.approx(mine[name], rel=1e-5, abs=1e-6), name
    assert two.imitate(rows, lr=LR) == pytest.approx(one.imitate(rows, lr=LR), rel=1e-5)
    assert two.validate(rows) == pytest.approx(one.validate(rows), rel=1e-5)
    two.save(tmp_path / "two", 4, {"step": 4})
    one.save(tmp_path / "one", 4, {"step": 4})
    two.load(latest(tmp_path / "two"))
    assert_alike(weights(one), weights(two))
    # each goes on from what the other has left, and both come to the same
    crossed, back = alone(student, reference=True), together(student, crew, reference=True)
    assert crossed.load(latest(tmp_path / "two")) == back.load(latest(tmp_path / "one")) == {"step": 4}
    for learner in (one, crossed, back):
        step(learner, groups, COUPLED, 9)
    assert_alike(weights(one), weights(crossed))
    assert_alike(weights(one), weights(back))
    found, _ = load_model(latest(tmp_path / "two"), dtype="float32")  # a model folder like any other
    assert found.config.vocab_size == 300


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_process_ends_the_work_with_one_error_that_names_it_and_leaves_nothing():
    with Crew(2, threads=1) as crew:
        os.kill(crew.pids[1], signal.SIGKILL)
        with pytest.raises(LearnerDied, match=r"process 1 of the 2 .* killed by SIGKILL .* --resume"):
            crew.ask("validate", [])
    assert not any(Path(f"/proc/{pid}").exists() for pid in crew.pids)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_process_that_hangs_ends_the_work_with_one_error_that_names_it_and_a_pause_does_not(
    tmp_path, model_factory, groups
):
    tokenizer = train_tokenizer(["read press open"], actions=["act:read"], vocab_size=300)
    save_model(tmp_path, model_factory(vocabulary=300), tokenizer)
    config = load(base={"model": {"path": str(tmp_path)}, "threads": 1})
    rows = [row for group in groups for row in group]
    with Crew(3, threads=1, patience_s=10) as crew:  # two wait for the one that hangs, and neither is named
        crew.ask("begin", Begin(config, tmp_path, LR, 0.01))
        time.sleep(12)  # nobody asks for longer than they wait for each other
        assert crew.ask("validate", rows)[0] > 0
        os.kill(crew.pids[1], signal.SIGSTOP)
        with pytest.raises(LearnerDied, match=r"process 1 of the 3 .* no answer in learner\.patience_s = 10 s"):
            crew.ask("validate", rows)
        began = time.monotonic()
    assert time.monotonic() - began < 10, "who hangs is not asked to leave"
    assert not any(Path(f"/proc/{pid}").exists() for pid in crew.pids)


COMES = """
import os, sys, time
from pathlib import Path
import torch.distributed as dist
from torch.distributed import FileStore
from envgym_agents.learn.worker import join
file, mark = sys.argv[1], Path(sys.argv[2])
child = os.fork()  # both have imported what they need, and computed nothing
rank = int(child > 0)
if rank:
    while not mark.exists():
        time.sleep(0.05)
    time.sleep(3)
mark.touch()
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
join("cpu", FileStore(file, 2), rank=rank, size=2, local=rank, patience_s=1)
dist.destroy_process_group()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if rank else 0)
"""


@pytest.mark.slow
def test_a_process_that_begins_late_is_waited_for_longer_than_an_answer(tmp_path):
    command = [sys.executable, "-c", COMES, str(tmp_path / "meeting"), str(tmp_path / "mark")]
    both = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert both.returncode == 0, both.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_process_that_never_begins_is_named_and_said_not_to_have_begun():
    with Crew(2, threads=1, patience_s=1, begin_s=3) as crew:
        os.kill(crew.pids[1], signal.SIGSTOP)
        with pytest.raises(LearnerDied, match=r"process 1 of the 2 .*\(pid \d+\) did not begin within 3 s during"):
            crew.ask("validate", [])
        began = time.monotonic()
    assert time.monotonic() - began < 10, "who never came is not asked to leave"
    assert not any(Path(f"/proc/{pid}").exists() for pid in crew.pids)


def test_those_that_are_there_wait_for_the_last_one_as_long_as_for_an_answer():
    assert begins_within(60.0).total_seconds() == 600
    assert begins_within(3600.0).total_seconds() == 3600


HOLDER = """
import sys, time
from envgym_agents.learn.crew import Crew
with Crew(2, threads=1) as crew:
    print(*crew.pids, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("losses", [0, 1, 2, 3])
def test_a_run_goes_on_after_as_many_losses_as_it_may_and_says_each(tmp_path, losses):
    asked = []

    def work(again: bool) -> str:
        asked.append(again)
        if len(asked) <= losses:
            raise LearnerDied(f"loss {len(asked)}")
        return "done"

    if losses <= 2:
        assert going_on(work, tmp_path, most=2) == "done"
    else:
        with pytest.raises(LearnerDied, match="loss 3"):
            going_on(work, tmp_path, most=2)
    assert asked == [number > 0 for number in range(min(losses, 2) + 1)]
    lines = (tmp_path / RESTARTS).read_text().splitlines() if losses else []
    assert [json.loads(line)["lost"] for line in lines] == [
        f"loss {number + 1}" for number in range(min(losses, 2))
    ]


def test_what_cannot_be_begun_is_not_tried_again_and_a_mistake_never(tmp_path):
    for error in (HostLost("no room"), ValueError("wrong")):

        def work(again: bool, error=error) -> None:
            assert not again
            raise error

        with pytest.raises(type(error)):
            going_on(work, tmp_path, most=5)
    assert not (tmp_path / RESTARTS).exists()
    with pytest.raises(ValueError, match="restarts 3 has no use where the learner is in one process"):
        load(overrides=["learner.restarts=3"])
    assert load(overrides=["learner.restarts=3", "cluster.learners=1"]).learner.restarts == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_who_started_them_being_killed_they_end(tmp_path):
    env = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True, env=env) as holder:
        pids = [int(pid) for pid in holder.stdout.readline().split()]
        assert len(pids) == 2
        holder.kill()
    until = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until, pids
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


GUESS = """
env = "guess"
expert = "random"
tasks = 12
turns = 8
threads = 1

[model]
size = "tiny"

[warm_start]
min_updates = 4
max_updates = 4
evaluate_every = 2
rows = 8

[reinforce]
steps = 2
tasks = 2
group = 4
checkpoint_every = 1
teaches = "all"

[reinforce.loop]
staleness = 0

[evaluate]
tasks = 2
greedy = false
baselines = []
bootstrap = 100
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_of_two_processes_goes_on_as_one_and_one_that_loses_a_process_by_itself_to_the_same_weights(tmp_path):
    (tmp_path / "guess.toml").write_text(GUESS)
    program = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--no-python",
    ]
    command = [str(Path(sys.executable).with_name("envgym")), "train", "--config", str(tmp_path / "guess.toml")]
    first = ["--out", str(tmp_path / "two"), "--set", "learner.processes=2", "--set", "reinforce.steps=1", "--json"]
    done = subprocess.run([*program, *command, *first], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "two" / "trained")
    reopened(tmp_path / "two", "reinforce")
    whole = load(tmp_path / "guess.toml")
    train(whole, tmp_path / "two", resume=True)
    train(whole, tmp_path / "one")
    killer = threading.Thread(
        target=killed_after_a_step, args=(tmp_path / "lossy" / "metrics.jsonl", second_processes())
    )
    killer.start()
    train(load(tmp_path / "guess.toml", ["learner.processes=2"]), tmp_path / "lossy")
    killer.join()
    (line,) = (tmp_path / "lossy" / RESTARTS).read_text().splitlines()
    assert "process 1 of the 2" in json.loads(line)["lost"]
    one, two, lossy = (
        load_file(tmp_path / name / "trained" / "model.safetensors") for name in ("one", "two", "lossy")
    )
    assert_alike(one, two)
    assert_alike(one, lossy)
    steps = [json.loads(line)["step"] for line in (tmp_path / "lossy" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2]


def second_processes() -> set[int]:
    """Rank 1 of each crew of this process, another test's among them."""
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    lines = {int(pid): Path("/proc", pid, "cmdline").read_bytes().split(b"\0") for pid in own}
    return {pid for pid, line in lines.items() if b"envgym_agents.learn.worker" in line and line[4] == b"1"}


def killed_after_a_step(metrics: Path, before: set[int]) -> None:
    """SIGKILL the second process of this one's learner, begun since, when the first step has been written."""
    until = time.monotonic() + 300
    while not (metrics.exists() and metrics.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    (pid,) = second_processes() - before
    os.kill(pid, signal.SIGKILL)


def reopened(folder: Path, *stages: str) -> None:
    """As if the run had been killed before these stages and those after them were done."""
    stored = json.loads((folder / "stages.json").read_text())
    kept = {name: found for name, found in stored.items() if name not in stages and "after" not in name}
    (folder / "stages.json").write_text(json.dumps(kept))
