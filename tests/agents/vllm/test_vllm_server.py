"""The process of an engine: it begins with a word, and ends with its owner, however that ends."""

import asyncio
import os
import queue
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from envgym_agents.model import new_model
from envgym_agents.policies.vllm.link import Server, VllmMissing, find_python, inside, server
from envgym_agents.policies.vllm.policy import VllmPolicy
from envgym_agents.policies.vllm.wire import ALL, EngineSettings, Failed, Generate, Load, Loaded, Sampled

from envgym.errors import AgentFailure, InfrastructureFailure
from envgym.limits import Sampling
from envgym.policy import Prompt

LIGHT = str(Path(__file__).with_name("light.py"))


def opened(settings, version, heard):
    return Server([sys.executable, LIGHT], settings, version, heard, start_s=100)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "handed over").mkdir()
    return tmp_path / "handed over"


def ended(pid):
    """Wait until a process is no more."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], 60)[0])
    finally:
        os.close(watched)


def test_it_answers_in_a_process_group_of_its_own_and_ends_with_close(folder):
    heard = queue.SimpleQueue()
    link = opened(EngineSettings(str(folder), 100), 3, heard.put)
    assert link.name == "light 1"
    assert os.getpgid(link.process.pid) == link.process.pid != os.getpgid(0)
    link.ask(Generate(1, (5,), 4, seed=0))
    assert heard.get(timeout=60) == Sampled(1, (1, 2, 3, 4), (-1.0,) * 4, ((0, 3),), "length")
    link.ask(Load(2, 4, "good"))
    assert heard.get(timeout=60) == Loaded(2, 4)
    link.ask(Load(3, 5, "bad"))
    assert heard.get(timeout=60) == Failed(3, "no such weight", refused=True)
    link.ask(Generate(4, (5,), 4, seed=0))
    refused = heard.get(timeout=60)  # of weights that are half in place nothing is sampled
    assert (refused.number, "could not be loaded" in refused.text) == (4, True)
    link.close()
    link.close()
    assert link.process.returncode == -signal.SIGKILL
    assert not folder.exists()
    with pytest.raises(InfrastructureFailure, match="is gone"):
        link.ask(Load(9, 9, "good"))


def test_a_step_that_fails_is_told_and_nothing_is_left(folder):
    heard = queue.SimpleQueue()
    link = opened(EngineSettings(str(folder), 100), 0, heard.put)
    link.ask(Generate(1, (13,), 4, seed=0))
    said = heard.get(timeout=60)
    assert said.number == ALL
    assert "no step for 13" in said.text
    assert link.process.returncode is not None
    assert not folder.exists()


OWNER = """
import sys, time
from envgym_agents.policies.vllm.link import Server
from envgym_agents.policies.vllm.wire import EngineSettings, Generate
link = Server([sys.executable, sys.argv[1]], EngineSettings(sys.argv[2], 100), 0, print, start_s=100)
link.ask(Generate(1, (1,), 1 << 40, seed=0))  # it computes when the end comes
print(link.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_an_owner_that_ends_leaves_no_process_and_no_folder(folder, how):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, LIGHT, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        pid = int(owner.stdout.readline())
        assert folder.exists()
        if how is None:
            owner.stdin.close()  # it ends by itself
        else:
            owner.send_signal(how)
        owner.wait(60)
    assert ended(pid)
    assert not folder.exists()


def test_an_engine_that_cannot_start_says_why(folder):
    with pytest.raises(InfrastructureFailure, match=r"(?s)ended before it was there.*the last words"):
        Server(["/bin/sh", "-c", "echo the last words; exit 3"], EngineSettings(str(folder), 100), 0, print)
    assert not folder.exists()


def test_a_killed_engine_fails_the_calls_it_served_and_the_next_one_starts_another():
    async def run():
        model = new_model(64, size="tiny", context=1 << 20)
        policy = VllmPolicy(model, opened, tolerance=float("inf"))  # a light engine knows no model
        async with policy:
            await policy.sample(Prompt([1]), Sampling(max_tokens=1))
            await policy.update()
            process = policy._link.process
            call = asyncio.ensure_future(policy.sample(Prompt([1]), Sampling(max_tokens=1 << 19)))
            await asyncio.sleep(0)
            os.killpg(process.pid, signal.SIGKILL)
            with pytest.raises(AgentFailure, match="the vLLM server is gone"):
                await call
            found = await policy.sample(Prompt([1]), Sampling(max_tokens=2))
            assert {one.version for one in found.versions} == {1}
            assert policy._link.process.pid != process.pid

    asyncio.run(run())
    assert not list(Path("/dev/shm").glob(f"envgym-vllm-{os.getpid()}-*"))


def test_where_no_vllm_is_one_is_told_what_to_do(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENVGYM_VLLM_PYTHON", raising=False)
    with pytest.raises(VllmMissing, match=r"run scripts/vllm_env\.sh"):
        find_python()
    with pytest.raises(VllmMissing, match=r"it has no vLLM: run scripts/vllm_env\.sh"):
        server(sys.executable)
    with pytest.raises(VllmMissing, match="it cannot be run"):
        find_python("/no/such/python")
    monkeypatch.setenv("ENVGYM_VLLM_PYTHON", "/no/such/python")
    with pytest.raises(VllmMissing, match="/no/such/python"):
        find_python()
    with pytest.raises(VllmMissing, match=r"sampler\.place"):
        inside()
