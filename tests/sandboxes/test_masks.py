"""What of /proc is not to be seen inside, or only to be read; and that programs still find what they need of it."""

import os

import pytest
from envgym_sandboxes import masks

pytestmark = [pytest.mark.timeout(60)]

LOOK = """
for name in {names}; do
    if [ -d /proc/$name ]; then cat=$(ls -A /proc/$name); else cat=$(head -c 100 /proc/$name 2>&1); fi
    [ -n "$cat" ] && echo "$name: $cat"
    {{ echo 1 > /proc/$name; }} 2>/dev/null && echo "$name can be written to"
done
find /proc/sys -type f 2>/dev/null | while read f; do {{ cat "$f" > "$f"; }} 2>/dev/null && echo "$f"; done
ls -A /sys
true
"""


@pytest.mark.slow
def test_facts_and_controls_of_the_machine_are_not_there(make, run, world):
    names = [name for name in (*masks._FILES, *masks._DIRECTORIES) if os.path.exists(f"/proc/{name}")]
    assert len(names) > 10, "this kernel has most of them"

    async def main():
        async with make() as backend, await backend.create(world) as sandbox, await sandbox.fork() as fork:
            for place in (sandbox, fork):
                result = await place.exec(LOOK.format(names=" ".join(names)))
                assert result.ok
                assert result.stdout == b"", result.text

    run(main())


def test_masks_cannot_be_lifted(make, run, world):
    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            result = await sandbox.exec("umount /proc/kallsyms || umount -l /proc/sys || mount -t proc proc /tmp")
            assert not result.ok
            assert (await sandbox.exec("unshare -Urm true")).exit_code != 0

    run(main())


def test_programs_find_what_they_need_of_proc(make, run, world):
    needed = (
        "nproc; free -b | grep -c Mem; uptime >/dev/null && ps -o pid= -p $$ | grep -c . ; "
        "python3 -c 'import os; os.getloadavg(); print(os.cpu_count() > 0, os.sysconf(\"SC_PHYS_PAGES\") > 0)'; "
        "cat /proc/self/status | grep -c Name; ls /proc/self/fd | wc -l; cat /proc/sys/kernel/ostype; "
        "head -c 5 /proc/version; "
        "for f in cpuinfo stat filesystems meminfo vmstat; do grep -q . /proc/$f || echo no $f; done"
    )

    async def main():
        async with make() as backend, await backend.create(world) as sandbox:
            result = await sandbox.exec(needed)
            lines = result.stdout.decode().split("\n")
            assert int(lines[0]) >= 1
            assert lines[1:5] == ["1", "1", "True True", "1"], result.text
            assert lines[6:] == ["Linux", "Linux"], result.text

    run(main())
