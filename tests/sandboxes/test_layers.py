"""Chains of layers stay short, and copying them costs what was written; nothing is held longer than it is used."""

import asyncio
import math

import pytest
from envgym_sandboxes.engine import Frozen
from envgym_sandboxes.layers import LONGEST, WIDTH, Layers
from envgym_sandboxes.world_layers import MOST_TREES

from envgym.limits import Resources
from envgym.task import Tree, World

pytestmark = pytest.mark.timeout(60)

NAME = len("lffffffff/f:")
"""The longest name of a layer that a process makes, with what separates it from the next."""
STATE = Frozen(World())
OTHERS = 4
"""Layers of a stack that are neither snapshots nor trees: set-up, files, and two of an image."""


class Copies:
    """Layers whose copying is only counted, and stands still while `gate` is closed."""

    def __init__(self):
        self.layers = Layers(self.merge, self.drop)
        self.made, self.dropped, self.copied = [], [], 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def merge(self, run, below, of):
        await self.gate.wait()
        name = f"m{len(self.made)}"
        self.made.append(name)
        size = sum(self.layers.known[part].size for part in run)
        self.copied += size
        return name, size

    async def drop(self, names):
        self.dropped += names

    async def freeze(self, chain, name, size=1):
        self.made.append(name)
        self.layers.add(name, users=1).size = size
        longer = (*chain, name)
        chain = await self.layers.bounded(longer, STATE)
        self.layers.use(chain)
        await self.layers.unuse(longer)
        self.layers.tidy(chain, STATE)
        return chain


def test_a_chain_grows_with_the_logarithm_and_each_byte_is_copied_once_per_rank():
    async def main():
        copies, chain = Copies(), ()
        for count in range(1, 2001):
            chain = await copies.freeze(chain, f"l{count}")
            await copies.layers.quiet()
            longest = (WIDTH - 1) * (1 + int(math.log(count, WIDTH) + 1e-9)) + 1
            assert len(chain) <= longest, f"{len(chain)} layers after {count} snapshots"
        assert copies.copied <= 2000 * math.log(2000, WIDTH)

    asyncio.run(main())


def test_what_nobody_stands_on_is_removed_with_the_copies_made_of_it():
    async def main():
        copies, chain, kept = Copies(), (), []
        for count in range(1, 201):
            chain = await copies.freeze(chain, f"l{count}")
            await asyncio.sleep(0)
            if count % 3 == 0:
                copies.layers.use(chain)
                kept.append(chain)
        await copies.layers.quiet()
        await copies.layers.unuse(chain)
        for held in kept:
            assert set(held) <= set(copies.layers.known), "a kept state has its layers"
            await copies.layers.unuse(held)
        assert copies.layers.known == {}
        assert sorted(copies.dropped) == sorted(copies.made), "each layer is removed once"

    asyncio.run(main())


def test_a_chain_that_outruns_its_copying_waits_for_it():
    async def main():
        copies, chain = Copies(), ()
        copies.gate.clear()
        for count in range(1, LONGEST + 1):
            chain = await copies.freeze(chain, f"l{count}")
        assert len(chain) == LONGEST
        waiting = asyncio.ensure_future(copies.freeze(chain, "last"))
        await asyncio.sleep(0)
        assert not waiting.done()
        copies.gate.set()
        assert len(await waiting) <= LONGEST
        await copies.layers.close()

    asyncio.run(main())


def test_a_copy_that_fails_fails_only_those_who_cannot_do_without_it():
    async def main():
        copies, chain = Copies(), ()

        async def broken(run, below, of):
            raise OSError("no room")

        copies.layers._merge = broken
        for count in range(1, LONGEST + 1):
            chain = await copies.freeze(chain, f"l{count}")
            await copies.layers.quiet()
        with pytest.raises(OSError, match="no room"):
            await copies.freeze(chain, "last")

    asyncio.run(main())


def test_the_longest_stack_is_far_below_what_the_kernel_takes():
    assert LONGEST + MOST_TREES + OTHERS < 500
    assert len("lowerdir=") + (LONGEST + MOST_TREES + OTHERS) * NAME < 2048, "the kernel takes one page of 4096"


@pytest.mark.slow
def test_a_world_of_six_hundred_trees_stacks_few_layers(make, run, tmp_path):
    for number in range(600):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/own{number}").write_text(f"{number}\n")
        (tmp_path / f"{number}/last").write_text(f"{number}\n")
    (tmp_path / "0/turned").mkdir()
    (tmp_path / "0/turned/hidden").write_text("under a file\n")
    (tmp_path / "1/turned").write_text("a file over a directory\n")
    (tmp_path / "2/turned").mkdir()
    trees = tuple(Tree(source=str(tmp_path / str(number)), target="/work/all") for number in range(600))

    async def main():
        async with make() as backend, await backend.create(World(trees=trees)) as sandbox:
            base = await backend.states.bases.get(sandbox._frozen)
            assert len(base.lowers) <= MOST_TREES + OTHERS
            result = await sandbox.exec("ls all | wc -l; cat all/last all/own0 all/own599; ls all/turned")
            assert result.stdout == b"602\n599\n0\n599\n", "later trees lie over earlier ones"

    run(main())


@pytest.mark.slow
def test_content_that_is_overwritten_at_every_turn_does_not_fill_the_disk(make, run):
    async def main():
        world = World(resources=Resources(disk_bytes=6 << 20, command_s=20.0))
        async with make() as backend, await backend.create(world) as sandbox:
            for turn in range(40):  # 40 MB through a disk of 6 MiB
                result = await sandbox.exec(f"head -c 1000000 /dev/urandom > f; echo {turn} > turn")
                assert result.ok, f"turn {turn}: {result}"
                await backend.release(await sandbox.snapshot())
            assert len(sandbox._frozen.chain) < 2 * WIDTH

    run(main())


def test_a_root_file_system_may_have_a_name_of_any_length(make, run, tmp_path):
    top = tmp_path
    while len(str(top)) < 1500:
        top = top / ("long:,name" * 20)
    (top / "etc").mkdir(parents=True)
    (top / "etc/marker").write_text("image\n")

    async def main():
        async with make() as backend, await backend.create(World(image=str(top))) as sandbox:
            assert await sandbox.read("/etc/marker") == b"image\n"
            await sandbox.write("/work/new", b"x")
            assert set(await sandbox.diff()) == {"/work/new"}

    run(main())
