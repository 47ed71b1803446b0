"""What a backend cannot be made with is refused when it is made; what a world cannot import, when it is begun."""

import sys

import pytest
from envgym_sandboxes.docker_engine.backend import DockerBackend
from envgym_sandboxes.landlock_backend import LandlockBackend
from envgym_sandboxes.local import LocalBackend
from envgym_sandboxes.namespace import NamespaceBackend

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
