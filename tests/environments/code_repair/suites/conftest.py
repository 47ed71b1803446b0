"""A small project in JavaScript with a task made by hand, which takes a second where a real one takes a minute."""

import asyncio
import gzip
import hashlib
import io
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from envgym_environments.code_repair.suites import Suite
from envgym_environments.code_repair.suites.guards import Guards, Insertion
from envgym_environments.code_repair.suites.measure import measure_guards
from envgym_environments.code_repair.suites.projects import Project
from envgym_environments.code_repair.suites.run import run_suite

from envgym.registry import make_backend
from envgym.sandbox import SandboxBackend
from envgym.task import Task, Tree, World

CODE = """'use strict'
class Money {
  constructor (cents) { this.cents = cents }
}
function total (values) {
  let sum = 0
  for (const value of values) sum += value
  return sum
}
function wallet (values) { return new Money(total(values)) }
module.exports = { Money, total, wallet }
"""
TESTS = """'use strict'
const { test } = require('node:test')
const { Money, total, wallet } = require('../index.js')

test('total of two', t => {
  t.assert.equal(total([1, 2]), 3)
})

test('a wallet holds its total', t => {
  t.assert.deepStrictEqual(wallet([5, 6]), new Money(11))
})

test('nothing is nothing', t => t.assert.equal(total([]), 0))

test('a coin stays', t => {
  t.assert.equal(new Money(7).cents, 7)
})
"""
SUITE = Suite(
    language="javascript",
    test="node --test-reporter=junit --test-reporter-destination=results.xml test/money.test.js",
    reader="node-junit",
    results="results.xml",
    source=("*.js",),
    tests=("test/**",),
    timeout_s=60,
)
CANARIES = (
    (
        Insertion(
            path="test/*.js", before=r"^test\(", text="test('{name}', t => { t.assert.equal('{word}', {a}) })\n\n"
        ),
    ),
    (
        Insertion(
            path="test/*.js",
            before=r"^test\(",
            text="test('{name}', t => {\n  t.assert.deepStrictEqual({ a: '{word}' }, { a: {b} })\n})\n\n",
        ),
    ),
)
FAILING = ("total of two", "a wallet holds its total")


@pytest.fixture
def run_in_backend() -> Callable[[Callable[[SandboxBackend], Awaitable[None]]], None]:
    async def run(body: Callable[[SandboxBackend], Awaitable[None]]) -> None:
        async with make_backend("namespace") as backend:
            await body(backend)

    return lambda body: asyncio.run(run(body))


@pytest.fixture
def money(tmp_path: Path) -> Callable[[SandboxBackend], Awaitable[Task]]:
    """Makes the task: `total` subtracts, which two tests notice. Its guards are those of the unbroken project."""

    async def make(backend: SandboxBackend) -> Task:
        tree = tmp_path / "money"
        (tree / "test").mkdir(parents=True)
        (tree / "index.js").write_text(CODE)
        (tree / "test" / "money.test.js").write_text(TESTS)
        world = World(trees=(Tree(source=str(tree), target="/repo"),), workdir="/repo")
        async with await backend.create(world) as sandbox:
            report = await run_suite(sandbox, SUITE)
            guards: Guards = await measure_guards(sandbox, SUITE, CANARIES, list(report.outcomes))
        return Task(
            id="money/total",
            prompt="2 tests fail:\n\n" + "\n".join(f"- {name}\n  wrong" for name in FAILING),
            world=world.model_copy(update={"files": {"/repo/index.js": CODE.replace("+=", "-=")}}),
            metadata={
                "suite": SUITE.model_dump(mode="json"),
                "module": "index.js",
                "fail_to_pass": list(FAILING),
                "pass_to_pass": ["nothing is nothing", "a coin stays"],
                "tests": 4,
                "suite_s": 1.0,
                "guards": guards.of(FAILING).model_dump(mode="json"),
            },
        )

    return make


@pytest.fixture
def money_project() -> Callable[[Path], Project]:
    """Makes the project of the same files; its archive is in the given cache already."""

    def make(cache: Path) -> Project:
        buffer = io.BytesIO()
        # without the time of day, which would draw other bugs each second
        with (
            gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as opened,
        ):
            for name, text in {"top/index.js": CODE, "top/test/money.test.js": TESTS}.items():
                info = tarfile.TarInfo(name)
                info.size = len(text.encode())
                opened.addfile(info, io.BytesIO(text.encode()))
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        (cache / "archives").mkdir(parents=True, exist_ok=True)
        (cache / "archives" / f"money-{digest[:16]}").write_bytes(buffer.getvalue())
        return Project(
            name="money",
            origin="npm",
            source="money",
            version="1.0",
            sha256=digest,
            licence="MIT",
            needs=("node",),
            canaries=CANARIES,
            suite=SUITE,
        )

    return make
