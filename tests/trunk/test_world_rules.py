"""What no world can be is said when it is written down, or, of a copy that nothing checked, when it is created."""

import math

import pytest

from envgym.limits import Resources
from envgym.task import Tree, World, checked_world

WRONG = [
    ({"setup": ("true", "a\0")}, r"World.setup\[1\] is 'a\\x00'; it must not hold a NUL"),
    ({"setup": ("a\ud800",)}, r"World.setup\[0\] is .*Unicode"),
    ({"workdir": "work"}, "World.workdir: 'work' must be an absolute path"),
    ({"workdir": "/a/../b"}, "World.workdir: '/a/../b' must be an absolute path"),
    ({"workdir": "/a\0"}, "World.workdir is .* NUL"),
    ({"env": {"A=B": "1"}}, "World.env has 'A=B'"),
    ({"env": {"": "1"}}, "World.env has ''"),
    ({"env": {"A": "1\0"}}, r"World.env\['A'\] is .* NUL"),
    ({"files": {"a": ""}}, "World.files: 'a' must be an absolute path"),
    ({"files": {"/a\0": ""}}, "World.files is .* NUL"),
    ({"trees": (Tree(source="/x", target="y"),)}, "World.trees target: 'y' must be an absolute path"),
    ({"trees": (Tree(source="/x\0", target="/y"),)}, "World.trees source is .* NUL"),
    ({"files": {"/work": ""}}, "World.files: '/work' is to be a file, and a directory, for World.workdir"),
    ({"files": {"/": ""}}, "World.files: '/' is to be a file, and a directory"),
    ({"files": {"/a": ""}, "workdir": "/a/b/c"}, "World.files: '/a' is to be a file.* for World.workdir"),
    ({"files": {"/work/a/b/c": "", "/work/a": ""}}, "World.files: '/work/a' is to be a file.* for /work/a/b/c"),
    ({"files": {"/t": ""}, "trees": (Tree(source="/", target="/t"),)}, "World.files: '/t' is .* for World.trees"),
    ({"network": "yes"}, "network\n.*valid boolean"),
    ({"network": 1}, "network\n.*valid boolean"),
    ({"image": ""}, "World.image is ''"),
    ({"image": "a\0"}, "World.image is .* NUL"),
    ({"preload": ("no module",)}, "World.preload: 'no module' cannot be the name"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=lambda one: str(one)[:60])
def test_what_no_world_can_be_is_refused_by_field_and_value(fields, message):
    with pytest.raises(ValueError, match=message):
        World(**fields)
    with pytest.raises(ValueError, match=message):
        checked_world(World().model_copy(update=fields))


def test_files_beside_and_below_each_other_are_no_matter():
    files = {"/work/a/b": "", "/work/a/c": "", "/work/ab": "", "/t/x": "\0"}
    world = World(files=files, trees=(Tree(source="/", target="/t"),), preload=("json.tool",))
    assert checked_world(world) is world


@pytest.mark.parametrize("place", ["/proc", "/sys", "/dev/x", "/usr", "/usr/src/x", "/bin", "/etc/x", "/opt/x"])
def test_no_world_on_the_host_is_where_its_programs_are(place):
    with pytest.raises(ValueError, match=f"World.workdir is {place!r}; .*/usr.* such as '/work'"):
        World(workdir=place)


@pytest.mark.parametrize("place", ["/proc", "/sys/x", "/usr", "/usr/bin", "/usr/src", "/lib64", "/etc/x"])
def test_no_world_of_an_image_is_where_its_programs_are(place):
    with pytest.raises(ValueError, match=f"World.workdir is {place!r}; .*below /usr/src/ is allowed"):
        World(image="base", workdir=place)


@pytest.mark.parametrize("place", ["/usr/src/app", "/opt/app", "/srv", "/"])
def test_an_image_s_own_places_may_be_a_workdir(place):
    assert World(image="base", workdir=place).workdir == place


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"command_s": "5"}, "command_s\n.*valid number"),
        ({"command_s": math.inf}, "command_s\n.*finite"),
        ({"command_cpu_s": math.nan}, "command_cpu_s\n.*finite"),
        ({"memory_bytes": 1.5e9}, "memory_bytes\n.*valid integer"),
        ({"memory_bytes": 1 << 62}, "memory_bytes\n.*less than or equal to"),
        ({"cpus": math.inf}, "cpus\n.*finite"),
        ({"cpus": 0.0001}, "cpus\n.*greater than or equal to 0.01"),
        ({"cpus": 1e9}, "cpus\n.*less than or equal to 8192"),
        ({"pids": 1 << 40}, "pids\n.*less than or equal to 4194240"),
        ({"pids": True}, "pids\n.*valid integer"),
    ],
)
def test_bounds_are_numbers_that_kernels_take(fields, message):
    with pytest.raises(ValueError, match=message):
        Resources(**fields)
    with pytest.raises(ValueError, match=message):
        checked_world(World().model_copy(update={"resources": Resources().model_copy(update=fields)}))


def test_what_is_no_world_is_said():
    with pytest.raises(TypeError, match="world is None; it must be a World"):
        checked_world(None)
