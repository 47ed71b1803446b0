"""Images: archives that are believed nothing, contents that are what their digest says, worlds on top of them."""

import hashlib
import io
import json
import os
import platform
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest
from envgym_sandboxes.images import build as build_module
from envgym_sandboxes.images.build import build
from envgym_sandboxes.images.cli import images_command
from envgym_sandboxes.images.recipes import recipes
from envgym_sandboxes.images.rootfs import content_digest
from envgym_sandboxes.images.store import Store, default_store
from envgym_sandboxes.namespace import NamespaceBackend
from envgym_sandboxes.state import new_name
from typer.testing import CliRunner

from envgym.errors import InfrastructureFailure, SandboxUnavailable, StoreCorrupt
from envgym.provenance import ImagingBackend
from envgym.task import World
from envgym.testing.check_sandbox import check_sandbox

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def entry(name, content=None, *, kind=None, link="", mode=0o644, time=1_000_000):
    info = tarfile.TarInfo(name)
    info.type = kind or (tarfile.DIRTYPE if content is None else tarfile.REGTYPE)
    info.mode, info.linkname, info.mtime = mode, link, time
    info.size = len(content or b"")
    return info, content


def tar_of(*entries, compress=""):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{compress}") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content) if content is not None else None)
    return buffer.getvalue()


def unpacked(store, *layers):
    """The root of an image of these layers."""
    return Path(store.add(opened(*layers), source="test").root)


def opened(*layers):
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            yield archive


def link(name, target, kind=tarfile.SYMTYPE):
    return entry(name, kind=kind, link=target, mode=0o777)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def test_what_a_recipe_does_not_promise_is_refused_and_not_kept_unless_it_is_accepted(store, monkeypatch):
    """With an archive in the place of mmdebstrap's, which takes a minute and needs a mirror."""
    made = tar_of(entry("etc"), entry("etc/hostname", b"other packages\n"))
    monkeypatch.setattr(
        build_module, "_run", lambda command, recipe, place: (place / "rootfs.tar").write_bytes(made)
    )
    monkeypatch.setattr(build_module, "_command", lambda recipe, target: [])
    with pytest.raises(InfrastructureFailure, match=r"demands sha256:.*--accept"):
        build("base", store)
    assert store.names() == {}
    assert [path for path in store.top.iterdir() if path.name.startswith("sha256")] == []
    image = build("base", store, accept=True)
    assert (Path(image.root) / "etc/hostname").read_text() == "other packages\n"
    assert store.find("base").digest == image.digest
    monkeypatch.setattr(build_module, "_run", None)
    assert build("base", store).digest == image.digest, "what is there is not built again"


def test_the_command_says_that_what_it_accepted_is_another_image(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path / "cache"))
    made = tar_of(entry("etc"), entry("etc/hostname", b"other packages\n"))
    monkeypatch.setattr(
        build_module, "_run", lambda command, recipe, place: (place / "rootfs.tar").write_bytes(made)
    )
    monkeypatch.setattr(build_module, "_command", lambda recipe, target: [])
    for _ in range(2):  # also where it was built before
        result = told("build", "base", "--accept")
        assert result.exit_code == 0
        assert f"base is not what its recipe made ({recipes()['base'].digest})" in result.output


LOWER = tar_of(
    entry("etc/", mode=0o755), entry("etc/name", b"lower\n"), entry("etc/gone", b"x"),
    entry("bin/tool", b"#!", mode=0o4755), entry("full/a", b"a"), entry("full/deep/b", b"b"),
    link("sbin", "bin"), link("also", "etc/name", tarfile.LNKTYPE),
)  # fmt: skip
UPPER = tar_of(
    entry("etc/.wh.gone", b""), entry("full/.wh..wh..opq", b""), entry("full/new", b"n"), entry("sbin/more", b"m"),
    entry("etc/name", b"upper\n"),
)  # fmt: skip


def test_upper_layers_replace_hide_and_delete_what_is_below(store):
    top = unpacked(store, LOWER, UPPER)
    found = sorted(str(path.relative_to(top)) for path in top.rglob("*"))
    assert found == ["also", "bin", "bin/more", "bin/tool", "etc", "etc/name", "full", "full/new", "sbin"]
    assert (top / "etc/name").read_text() == "upper\n"
    assert (top / "also").read_text() == "lower\n", "a hard link is another name for what was there"
    assert (top / "bin/more").read_text() == "m", "a link inside the image is followed inside it"


def test_an_opaque_mark_spares_what_its_own_layer_brought_before_it(store):
    upper = tar_of(entry("full/new", b"n"), entry("full/.wh..wh..opq", b""))
    assert sorted(os.listdir(unpacked(store, LOWER, upper) / "full")) == ["new"]


def test_privileges_and_devices_stay_behind(store):
    layer = tar_of(
        entry("su", b"x", mode=0o6755), entry("dir", mode=0o3777), entry("null", kind=tarfile.CHRTYPE),
        entry("disk", kind=tarfile.BLKTYPE), entry("pipe", kind=tarfile.FIFOTYPE), entry("closed", b"x", mode=0),
    )  # fmt: skip
    top = unpacked(store, layer)
    assert sorted(os.listdir(top)) == ["closed", "dir", "su"]
    modes = {name: stat.S_IMODE((top / name).stat().st_mode) for name in ("su", "dir", "closed")}
    assert modes == {"su": 0o755, "dir": 0o1777, "closed": 0o400}


@pytest.mark.parametrize(
    "hostile",
    [
        [entry("../out", b"x")],
        [entry("a/../../out", b"x")],
        [entry("/out", b"x")],
        [entry("out/.wh...", b"")],
        [link("name", "/etc/hostname", tarfile.LNKTYPE)],
        [link("name", "../../out", tarfile.LNKTYPE)],
        [link("up", "/tmp"), entry("up/out", b"x")],
        [link("up", "../.."), link("name", "up/secret", tarfile.LNKTYPE)],
    ],
)
def test_an_archive_that_leads_out_is_refused(store, tmp_path, hostile):
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(ValueError, match=r"leads out|not there|not a file name|leads nowhere"):
        unpacked(store, tar_of(*hostile))
    assert sorted(os.listdir(tmp_path)) == ["secret", "store"]
    assert list(store.top.glob("sha256-*")) == [], "nothing half done is left"
    assert list(store.top.glob("making-*")) == []


@pytest.mark.parametrize("target", ["../../..", "/", "/tmp", "../../../../../../tmp"])
def test_writing_through_a_link_out_lands_inside(store, tmp_path, target):
    name = f"envgym-{new_name()}"
    top = unpacked(store, tar_of(entry("tmp/", mode=0o755), link("door", target), entry(f"door/{name}", b"x")))
    landed = [path for path in (top / name, top / "tmp" / name) if path.exists()]
    assert len(landed) == 1, "as if the image's root were the root"
    assert not Path("/tmp", name).exists()
    assert not any((folder / name).exists() for folder in (tmp_path, tmp_path.parent, Path("/")))


def oci(folder, layers, *, architecture=ARCHITECTURE, copies=1):
    """An OCI layout of the layers."""

    def blob(content):
        digest = hashlib.sha256(content).hexdigest()
        (folder / "blobs/sha256").mkdir(parents=True, exist_ok=True)
        (folder / "blobs/sha256" / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    manifest = blob(json.dumps({"layers": [blob(layer) for layer in layers]}).encode())
    manifest["platform"] = {"architecture": architecture, "os": "linux"}
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"manifests": [manifest] * copies}))
    return folder


def tar_folder(folder, target):
    with tarfile.open(target, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, str(path.relative_to(folder)), recursive=False)
    return target


def saved(folder, layers):
    """What older engines' `docker save` writes; a repeated layer is a link there."""
    names = []
    for number, layer in enumerate(layers):
        (folder / f"{number}").mkdir(parents=True)
        names.append(f"{number}/layer.tar")
        (folder / names[-1]).write_bytes(layer)
    (folder / "last").mkdir()
    (folder / "last/layer.tar").symlink_to("../1/layer.tar")
    (folder / "manifest.json").write_text(json.dumps([{"Layers": [*names, "last/layer.tar"], "RepoTags": ["x:1"]}]))
    return tar_folder(folder, folder.with_suffix(".tar"))


def test_every_kind_of_image_file_gives_the_same_content(store, tmp_path):
    whole = unpacked(store, LOWER, UPPER)
    wanted = content_digest(str(whole))[0]
    layout = oci(tmp_path / "layout", [LOWER, UPPER])
    kinds = [layout, tar_folder(layout, tmp_path / "layout.tar"), saved(tmp_path / "saved", [LOWER, UPPER])]
    flat = io.BytesIO()
    with tarfile.open(fileobj=flat, mode="w:gz") as archive:
        archive.add(whole, ".")
    (tmp_path / "flat.tar.gz").write_bytes(flat.getvalue())
    for kind in [*kinds, tmp_path / "flat.tar.gz"]:
        image = store.resolve(str(kind))
        assert image.digest == wanted, kind
        assert store.resolve(str(kind)) == image
        assert store.resolve(wanted).root == image.root, "a digest is a name"
    assert store.resolve(str(whole)).digest is None, "a directory is taken as it is"


def test_compressed_layers_are_read(store, tmp_path):
    plain = oci(tmp_path / "plain", [LOWER])
    packed = oci(tmp_path / "packed", [tar_of((tarfile.TarInfo("x"), b""), compress="gz")])
    assert store.resolve(str(plain)).digest != store.resolve(str(packed)).digest


def test_a_damaged_or_ambiguous_image_is_refused(store, tmp_path):
    layout = oci(tmp_path / "damaged", [LOWER])
    blob = max((layout / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(blob.read_bytes()[:-512] + b"x" * 512)
    with pytest.raises(ValueError, match="damaged"):
        store.resolve(str(layout))
    blob.unlink()
    with pytest.raises(ValueError, match="not a whole image"):
        store.resolve(str(layout))
    for name, options in (("two", {"copies": 2}), ("other", {"architecture": "riscv64"})):
        with pytest.raises(ValueError, match=r"holds . images"):
            store.resolve(str(oci(tmp_path / name, [LOWER], **options)))
    (tmp_path / "layout").mkdir()
    (tmp_path / "layout/oci-layout").write_text("{}")
    (tmp_path / "layout/index.json").write_text(
        json.dumps({"manifests": [{"digest": "sha256:../../../etc/passwd"}]})
    )
    with pytest.raises(ValueError, match="not a sha256 digest"):
        store.resolve(str(tmp_path / "layout"))
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ValueError, match="no tar archive"):
        store.resolve(str(tmp_path / "text"))


def test_an_image_may_not_fill_the_disk(store, monkeypatch):
    monkeypatch.setattr("envgym_sandboxes.images.rootfs.MOST_BYTES", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        unpacked(store, tar_of(entry("a", b"123456"), entry("b", b"123456")))


def test_the_digest_is_of_content_and_permissions_alone(store):
    one, two = entry("a", b"1", time=5), entry("d/b", b"2")
    digests = [
        content_digest(str(unpacked(store, tar_of(*entries))))[0]
        for entries in ([one, two], [two, entry("a", b"1")])
    ]
    assert digests[0] == digests[1], "neither order nor times count"
    for other in ([one], [one, entry("d/b", b"3")], [one, entry("d/b", b"2", mode=0o755)], [one, link("d/b", "a")]):
        assert content_digest(str(unpacked(store, tar_of(*other))))[0] != digests[0]


def test_what_a_killed_maker_left_is_removed_and_a_living_ones_stays(store):
    store.top.mkdir()
    here = os.stat("/proc/self/ns/pid").st_ino
    dead, living = store.top / f"making-4194303-1-{here}-0", store.top / f"making-{new_name()}"
    for path in (dead, living):
        (path / "rootfs").mkdir(parents=True)
    unpacked(store, LOWER)
    assert not dead.exists()
    assert living.exists()


def test_a_changed_image_is_found_out(store):
    image = store.add(opened(LOWER), source="test", name="mine")
    assert store.verify("mine") == image
    Path(image.root, "etc/name").write_text("other\n")
    with pytest.raises(StoreCorrupt, match="remove"):
        store.verify("mine")


def test_backends_know_an_image_by_its_content(run, tmp_path, monkeypatch):
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "image.tar").write_bytes(LOWER)
    (tmp_path / "rootfs").mkdir()
    images = {"mine": str(tmp_path / "image.tar"), "bare": str(tmp_path / "rootfs")}
    backend = NamespaceBackend(images=images)
    assert isinstance(backend, ImagingBackend)

    async def digest(image):
        return await backend.image_digest(World(image=image))

    assert run(digest("mine")) == default_store().resolve(images["mine"]).digest
    assert run(digest("mine")).startswith("sha256:")
    assert run(digest("bare")) is None
    assert run(digest("host")) is None
    with pytest.raises(ValueError, match="'theirs' is not known here"):
        run(digest("theirs"))


def test_what_an_image_has_at_the_workdir_belongs_to_who_works_there(run, make, tmp_path):
    top = tmp_path / "rootfs"
    (top / "repo" / "deep").mkdir(parents=True)
    (top / "repo" / "deep" / "file").write_text("the image's\n")
    (top / "other").mkdir()
    (top / "other" / "file").write_text("the image's\n")
    (top / "link").symlink_to("repo")

    async def play():
        async with make() as backend:
            world = World(image=str(top), workdir="/repo")
            async with await backend.create(world) as one, await backend.create(world) as two:
                await one.write("deep/file", b"mine\n")
                found = [await one.read("deep/file"), await two.read("deep/file")]
                with pytest.raises(PermissionError):
                    await one.write("/other/file", b"mine\n")
                kept = await one.snapshot(durable=True)
            async with await backend.restore(kept) as three:
                found.append(await three.read("deep/file"))
            async with await backend.create(World(image=str(top), workdir="/link")) as four:
                with pytest.raises(OSError):  # noqa: PT011
                    await four.write("/repo/deep/file", b"mine\n")
            await backend.release(kept)
            return found

    assert run(play()) == [b"mine\n", b"the image's\n", b"mine\n"]
    assert (top / "repo" / "deep" / "file").read_text() == "the image's\n"


def test_unknown_names_say_what_is_known(store):
    with pytest.raises(ValueError, match=r"not known here \(known: base, "):
        store.find("bass")
    with pytest.raises(SandboxUnavailable, match="envgym images build base"):
        store.find("base")
    for name in ("host", "../x", ""):
        with pytest.raises(ValueError, match="image name"):
            store.name(name, "sha256:" + "0" * 64)


def test_a_wrong_recipe_is_told_with_its_place(tmp_path):
    path = tmp_path / "images.toml"
    path.write_text('[base]\npurpose = "x"\nsuite = "bookworm; rm"\n')
    with pytest.raises(ValueError, match=r"images.toml: base\.suite"):
        recipes(path)
    with pytest.raises(ValueError, match="no recipe 'bass'"):
        build("bass", default_store())


def told(*arguments):
    return CliRunner().invoke(images_command, list(arguments))


def test_the_command_line_imports_lists_and_verifies(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVGYM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "image.tar").write_bytes(LOWER)
    assert told("import", str(tmp_path / "image.tar"), "mine").exit_code == 0
    rows = {row["name"]: row for row in json.loads(told("list", "--json").stdout)}
    assert rows["mine"]["built"]["size_bytes"] == sum(map(len, (b"lower\n", b"lower\n", b"x", b"#!", b"a", b"b")))
    assert rows["base"]["built"] is None
    assert "not built" in told("list").stdout
    assert rows["mine"]["built"]["digest"] in told("verify").stdout
    for wrong in (["import", str(tmp_path / "absent"), "mine"], ["import", str(tmp_path / "image.tar"), "base"]):
        assert told(*wrong).exit_code == 2
    assert isinstance(told("build", "mine").exception, ValueError)
    assert isinstance(told("verify", "base").exception, SandboxUnavailable)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.namespaces
def test_namespace_backend_keeps_the_contract_on_an_image(make, run, world, base_image, all_but):
    run(check_sandbox(make, world=world.model_copy(update={"image": base_image.name}), must=all_but()))


@pytest.mark.namespaces
def test_an_image_is_a_world_of_its_own(make, run, world, base_image):
    async def main():
        async with make() as backend, await backend.create(world.model_copy(update={"image": "base"})) as sandbox:
            result = await sandbox.exec(
                "id -un; . /etc/os-release; echo $VERSION_CODENAME; git --version; "
                "python3 -c 'import sys; print(sys.prefix)'"
            )
            assert result.ok, result
            assert result.stdout.split()[:2] == [b"agent", b"bookworm"]
            assert result.stdout.split()[-1] == b"/usr"
            assert (await sandbox.exec(["touch", "/usr/x"])).exit_code == 1

    run(main())
    assert content_digest(base_image.root)[0] == base_image.digest, "nothing of it was written to"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's builds mount anything here; fix: run as root")
def test_what_a_failed_build_has_mounted_is_not_emptied_with_its_folder(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "kept").write_text("k")
    script = f'mkdir tree && mount --bind "{shared}" tree && touch tree/seen; exit 3'
    with Store(tmp_path / "store").scratch() as place:
        with pytest.raises(InfrastructureFailure, match="status 3"):
            build_module._run(["/bin/sh", "-c", script], recipes()["desktop"], place)
        assert not os.path.ismount(place / "tree"), "it ended with the build"
    assert sorted(path.name for path in shared.iterdir()) == ["kept", "seen"]


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_builder_left_mounted_of_the_host_is_taken_off_and_not_emptied(tmp_path, killed):
    """A killed mmdebstrap left /dev/shm bound in its tree, and removing the tree emptied the host's."""
    host = tmp_path / "of the host"
    host.mkdir()
    (host / "kept").write_text("kept")
    store = Store(tmp_path / "images")

    def bind(place: Path) -> Path:
        inside = place / "tree" / "dev shm"
        inside.mkdir(parents=True)
        done = subprocess.run(["mount", "--bind", str(host), str(inside)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this user cannot mount: {done.stderr.strip()}")
        return inside

    if killed:  # its maker is dead: the next one finds it
        pid, _start, *rest = new_name().split("-")
        place = store.top / "-".join([f"making-{pid}", "1", *rest])
        place.mkdir(parents=True)
        inside = bind(place)
        with store.scratch():
            pass
    else:
        with store.scratch() as place:
            inside = bind(place)
    assert (host / "kept").read_text() == "kept"
    assert not place.exists()
    assert str(inside).replace(" ", "\\040") not in Path("/proc/self/mountinfo").read_text()
