"""What a backend cannot be made with is refused when it is made; what a world cannot import, when it is begun."""

import sys

import pytest
from envgym_sandboxes.docker_engine.backend import DockerBackend
from envgym_sandboxes.landlock_backend import LandlockBackend
from envgym_sandboxes.local import LocalBackend
from envgym_sandboxes.namespace import NamespaceBackend
from envgym_sandboxes.pool import PoolBackend

from envgym.errors import EnvironmentFailure
from envgym.limits import Resources
from envgym.task import World


@pytest.mark.parametrize("made", [NamespaceBackend, LandlockBackend, LocalBackend, DockerBackend])
@pytest.mark.parametrize("option", ["root", "snapshots"])
def test_a_place_that_is_no_directory_is_refused_at_once(made, option, tmp_path):
    file = tmp_path / "file"
    file.touch()
    for wrong in (file, str(file), file / "below" / "it"):
        with pytest.raises(
            ValueError, match=f"{option} is '{wrong}'; it must be a directory, and '{file}' is none"
        ):
            made(**{option: wrong})
    (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(ValueError, match="must be a directory"):
        made(**{option: tmp_path / "gone"})
    with pytest.raises(TypeError, match=f"{option} is 5; it must be a str or a path"):
        made(**{option: 5})
    made(**{option: tmp_path / "yet" / "to" / "be" / "made"})
    assert not (tmp_path / "yet").exists(), "nothing is made before it is needed"


@pytest.mark.parametrize("warm", ["x", 1.5, None])
def test_docker_counts_what_it_keeps_warm(warm):
    with pytest.raises(TypeError, match=r"warm is .* an int"):
        DockerBackend(warm=warm)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["make", "make_landlock", "make_local"])
def test_a_module_that_cannot_be_imported_is_the_world_s_mistake(kind, request, run, tmp_path, monkeypatch):
    make = request.getfixturevalue(kind)
    (tmp_path / "leaves.py").write_text("raise SystemExit('gone')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(filter(None, sys.path))}")

    async def main():
        async with make() as backend:
            for module, why in (("absent_one", "ModuleNotFoundError"), ("leaves", "SystemExit: gone")):
                for setup in ((), ("true",)):
                    with pytest.raises(ValueError, match=f"World.preload: '{module}' cannot be imported: {why}"):
                        await backend.create(World(preload=("json", module), setup=setup))
            async with await backend.create(World(preload=("json",))) as sandbox:
                assert (await sandbox.exec("echo works")).stdout == b"works\n"

    run(main())


def test_set_up_that_fails_says_why_also_when_it_wrote_nothing(make_local, run):
    resources = Resources(command_s=0.3)
    failures = {
        "sleep 20": r"'sleep 20' was not done within 0.3 s, which is Resources.command_s: it wrote nothing",
        "echo begun; sleep 20": r"within 0.3 s, which is Resources.command_s: begun",
        "exit 3": r"'exit 3' ended with status 3: it wrote nothing",
    }

    async def main():
        async with make_local() as backend:
            for command, message in failures.items():
                with pytest.raises(EnvironmentFailure, match=message):
                    await backend.create(World(setup=(command,), resources=resources))

    run(main())


@pytest.mark.timeout(60)
def test_an_image_without_a_shell_is_named(make, run, tmp_path):
    image = tmp_path / "image"
    (image / "etc").mkdir(parents=True)

    async def main():
        async with make() as backend:
            async with await backend.create(World(image=str(image))) as sandbox:
                with pytest.raises(FileNotFoundError, match=f"no /bin/bash.*World.image is '{image}'") as met:
                    await sandbox.exec("true")
                assert met.value.filename == "/bin/bash"
                result = await sandbox.exec(["/nope"])
                assert (result.exit_code, result.stderr) == (127, b"/nope: No such file or directory\n")
            with pytest.raises(FileNotFoundError, match=f"World.image is '{image}'"):
                await backend.create(World(image=str(image), setup=("true",)))

    run(main())


@pytest.mark.parametrize(
    ("inner", "options", "kind", "message"),
    [
        ("nope", {}, ValueError, "unknown sandbox 'nope'"),
        ("namespace", {"xyz": 1}, TypeError, "options.xyz = 1: there is no such option"),
        ([{"backend": "local"}, {"backend": "namespace", "xyz": 1}], {}, TypeError, "options.xyz"),
    ],
)
def test_a_pool_says_at_once_what_none_of_its_backends_can_be(inner, options, kind, message, caplog):
    with pytest.raises(kind, match=message):
        PoolBackend(inner, options=options)
    assert not caplog.records, "nobody is told of a backend that went, since none was there"
