"""Files that claim to be snapshots: whatever is in them, they are imported whole or refused with nothing left."""

import asyncio
import base64
import hashlib
import json
import os
import zlib

import pytest
from envgym_sandboxes import protocol
from envgym_sandboxes.durable import archive
from envgym_sandboxes.durable.form import Entry, Piece, Writer, header, parse
from envgym_sandboxes.durable.identity import identity_of
from envgym_sandboxes.durable.packing import pack, unpack
from envgym_sandboxes.durable.records import Manifest, encode_manifest
from envgym_sandboxes.durable.store import Store
from envgym_sandboxes.images.store import Image
from envgym_sandboxes.namespace import NamespaceBackend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgym.errors import StoreCorrupt
from envgym.task import World

pytestmark = pytest.mark.timeout(60)

TOP = {"d": 0, "n": "", "k": "directory", "m": 0o755, "t": 1, "o": True, "q": False}
DIRECTORY = TOP | {"d": 1, "n": "d"}
FILE = {"d": 1, "n": "f", "k": "file", "m": 0o644, "t": 1, "o": True, "s": 4, "l": False}
LINK = {"d": 1, "n": "l", "k": "link", "m": 0o777, "t": 1, "o": True, "to": "/etc"}
HARD = {"d": 1, "n": "h", "k": "hard", "f": 0}
GONE = {"d": 1, "n": "g", "k": "gone"}
LARGEST = (1 << 63) - 1


def layer(*frames, end=None):
    """A packed layer of frames as they are given: heads, or pairs of a head and a body."""
    pairs = [frame if isinstance(frame, tuple) else (frame, b"") for frame in frames]
    count = sum("at" not in head for head, _body in pairs) if end is None else end
    data = b"".join(protocol.encode(head, body) for head, body in [*pairs, ({"end": count}, b"")])
    return header("layer") + zlib.compress(data)


HOSTILE = {
    "a name that leads up": (TOP, FILE | {"n": ".."}),
    "a name that is a path": (TOP, FILE | {"n": "a/../../etc/passwd"}),
    "an absolute name": (TOP, FILE | {"n": "/etc/passwd"}),
    "a name with a NUL": (TOP, FILE | {"n": "a\0b"}),
    "a name that no file system stores": (TOP, FILE | {"n": "\ud800"}),
    "a name that is too long": (TOP, FILE | {"n": "x" * 256}),
    "no name": (TOP, FILE | {"n": ""}),
    "a name twice": (TOP, FILE, FILE),
    "names out of order": (TOP, FILE | {"n": "b"}, FILE | {"n": "a"}),
    "a directory twice": (TOP, DIRECTORY, FILE | {"d": 2}, DIRECTORY),
    "something in a file": (TOP, FILE, FILE | {"d": 2, "n": "x"}),
    "something in a link": (TOP, LINK, FILE | {"d": 2, "n": "passwd"}),
    "something in what is gone": (TOP, GONE, FILE | {"d": 2, "n": "x"}),
    "something above the top": (TOP, FILE | {"d": 0}),
    "a depth below zero": (TOP, FILE | {"d": -1}),
    "no top": (FILE,),
    "a top that is a link": (LINK | {"d": 0, "n": ""},),
    "a device": (TOP, FILE | {"k": "device"}),
    "a socket": (TOP, FILE | {"k": "socket"}),
    "a hard link to what is not there": (TOP, HARD),
    "a hard link to a file with one name": (TOP, FILE, HARD),
    "a hard link to a number below zero": (TOP, FILE | {"l": True}, HARD | {"f": -1}),
    "a privileged attribute": (TOP, FILE | {"x": {"trusted.overlay.opaque": "eQ=="}}),
    "a capability": (TOP, FILE | {"x": {"security.capability": "AQAAAg=="}}),
    "an attribute with a NUL": (TOP, FILE | {"x": {"user.a\0b": "eQ=="}}),
    "an attribute that is no base64": (TOP, FILE | {"x": {"user.a": "?"}}),
    "too many attributes": (
        TOP,
        FILE | {"x": {f"user.{n}": base64.b64encode(bytes(4000)).decode() for n in range(40)}},
    ),
    "a mode with a kind": (TOP, FILE | {"m": 0o100644}),
    "a mode that is a text": (TOP, FILE | {"m": "644"}),
    "a size below zero": (TOP, FILE | {"s": -1}),
    "a size that no file has": (TOP, FILE | {"s": LARGEST + 1}),
    "a time that no file has": (TOP, FILE | {"t": 1 << 70}),
    "bytes of no file": (TOP, ({"at": 0}, b"x")),
    "bytes of a directory": (TOP, DIRECTORY, ({"at": 0}, b"x")),
    "bytes after the end of a file": (TOP, FILE, ({"at": 0}, b"12345")),
    "bytes before others": (TOP, FILE, ({"at": 2}, b"x"), ({"at": 1}, b"x")),
    "bytes at a place that no file has": (TOP, FILE | {"s": LARGEST}, ({"at": LARGEST}, b"x")),
    "more bytes than a piece may have": (TOP, FILE | {"s": 1 << 30}, ({"at": 0}, bytes((1 << 20) + 1))),
    "a body where there is none": (TOP, (FILE, b"x")),
    "something that is not known": (TOP, FILE | {"run": "/bin/sh"}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_layer_that_is_not_of_the_form_is_refused(what):
    with pytest.raises(ValueError, match=r"."):
        list(parse([layer(*HOSTILE[what])]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"envgym-layer 1\n",
        b"envgym-layer 2\n" + layer(TOP)[15:],
        layer(TOP)[:-3],
        layer(TOP) + b"x",
        layer(TOP, end=2),
        layer(TOP, {"end": 1}, TOP),
        header("layer") + zlib.compress(b"\0\0\0\x02\xff\xff\xff\xff{}"),
        header("layer") + zlib.compress(b"\xff\xff\xff\xff\0\0\0\0"),
        header("layer") + zlib.compress(b"\0\0\0\x05\0\0\0\0[1,2]"),
        header("layer") + zlib.compress(b"\0\0\x08\0\0\0\0\0" + b"[" * 2048),
    ],
)
def test_a_stream_that_is_cut_or_goes_on_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        list(parse([data]))


def test_a_well_formed_layer_is_read_as_it_is():
    things = list(parse([layer(TOP, DIRECTORY, FILE | {"d": 2}, ({"at": 1}, b"abc"), GONE, LINK)]))
    assert [thing.name for thing in things if isinstance(thing, Entry)] == ["", "d", "f", "g", "l"]
    assert [thing for thing in things if isinstance(thing, Piece)] == [Piece(1, b"abc")]


def write(path, things, manifest):
    """An archive of things as they are given, under names as they are given."""
    data = header("snapshot") + protocol.encode({"manifest": True}, encode_manifest(manifest))
    for name, content in things.items():
        data += protocol.encode({"thing": name, "size": len(content)})
        data += b"".join(
            protocol.encode({"piece": True}, content[at : at + (1 << 20)]) for at in range(0, len(content), 1 << 20)
        )
    path.write_bytes(data + protocol.encode({"end": len(things)}))


def named(*things):
    return {hashlib.sha256(thing).hexdigest(): thing for thing in things}


def thing(kind, content):
    return header(kind) + zlib.compress(json.dumps(content).encode())


WORLD = header("world") + zlib.compress(World().model_dump_json().encode())
PLAIN = layer(TOP, FILE, ({"at": 0}, b"data"))


def manifest_of(world=WORLD, base=(PLAIN,), chain=(PLAIN,), shell=None, **more):
    def name(thing):
        return thing if isinstance(thing, str) else hashlib.sha256(thing).hexdigest()

    told = {"backend": "namespace", "created": 0.0, "partial": False, "digest": "0" * 64}
    told |= {"identity": identity_of(Image("host", "/")), "world": name(world), "shell": shell and name(shell)}
    return Manifest(**told | {"base": tuple(map(name, base)), "chain": tuple(map(name, chain))} | more)


def folders(kept):
    return [path for name in ("objects", "making", "snapshots") for path in sorted((kept / name).iterdir())]


def deep_lists():
    """A list of lists of lists ... that stands for more layers than there are."""
    found = [PLAIN]
    for _ in range(64):
        name = hashlib.sha256(found[-1]).hexdigest()
        found.append(thing("list", [name, name]))
    return found


BROKEN = {
    **{
        what: (named(WORLD, PLAIN, bad := layer(*frames)), manifest_of(chain=(bad,)))
        for what, frames in HOSTILE.items()
    },
    "a thing that is not what its name says": (
        {"0" * 64: PLAIN} | named(WORLD),
        manifest_of(chain=("0" * 64,), base=()),
    ),
    "a thing that is missing": (named(WORLD), manifest_of()),
    "a thing that nobody names": (named(WORLD, PLAIN, layer(TOP)), manifest_of()),
    "a name that is a path": ({"../../x": PLAIN} | named(WORLD, PLAIN), manifest_of()),
    "a world that is a layer": (named(PLAIN), manifest_of(world=PLAIN)),
    "a world that is none": (named(w := thing("world", {"image": 1}), PLAIN), manifest_of(world=w)),
    "a world with a field too many": (named(w := thing("world", {"evil": 1}), PLAIN), manifest_of(world=w)),
    "a base that is a list": (named(WORLD, PLAIN, ls := thing("list", [])), manifest_of(base=(ls,))),
    "a chain with a world": (named(WORLD, PLAIN), manifest_of(chain=(WORLD,))),
    "a list with a path": (named(WORLD, PLAIN, ls := thing("list", ["../x"])), manifest_of(chain=(ls,))),
    "a list that is none": (named(WORLD, PLAIN, ls := thing("list", {"a": 1})), manifest_of(chain=(ls,))),
    "lists of lists without end": (named(WORLD, *(all_ := deep_lists())), manifest_of(chain=(all_[-1],))),
    "a shell that is none": (named(WORLD, PLAIN, sh := thing("shell", {"cwd": 1})), manifest_of(shell=sh)),
    "a shell with more": (
        named(WORLD, PLAIN, sh := thing("shell", {"cwd": "/", "run": "x"})),
        manifest_of(shell=sh),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_archive_with_something_wrong_is_refused_and_leaves_nothing(tmp_path, what):
    things, manifest = BROKEN[what]
    (tmp_path / "state").mkdir()
    write(tmp_path / "file", things, manifest)
    before = sorted(os.listdir(tmp_path))

    async def main():
        async with NamespaceBackend(root=tmp_path / "state", snapshots=tmp_path / "kept") as backend:
            with pytest.raises(StoreCorrupt, match=r"file cannot be imported: ."):
                await backend.import_snapshot(str(tmp_path / "file"))

    asyncio.run(main())
    assert folders(tmp_path / "kept") == []
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "kept"])
    assert list((tmp_path / "state").iterdir()) == [], "nothing was started for it"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data + b"x", "it is too long: there is something after its end; export the snapshot again"),
        (lambda data: data + bytes(100), "it is too long"),
        (lambda data: data + protocol.encode({"end": 2}), "it is too long"),
        (lambda data: data + data, "it is too long"),
        (lambda data: data[:-1], "it is cut off; export the snapshot again"),
        (lambda data: data.replace(b"envgym-snapshot 1", b"envgym-snapshot 2", 1), "again with this version"),
        (lambda data: b"some text\n" * 100, "it is no snapshot file; give one"),
        (lambda data: b"", "it is no snapshot file; give one"),
        (lambda data: data[:4], "it is no snapshot file; give one"),
    ],
    ids=["a byte", "zeros", "a frame", "itself", "cut", "a version", "a text", "nothing", "a bit"],
)
def test_what_is_wrong_with_a_file_is_said_as_it_is(tmp_path, change, said):
    write(tmp_path / "file", named(WORLD, PLAIN), manifest_of())
    (tmp_path / "made").mkdir()
    (tmp_path / "file").write_bytes(change((tmp_path / "file").read_bytes()))
    with pytest.raises(StoreCorrupt, match=said) as met:
        archive.read(tmp_path / "file", tmp_path / "made")
    assert str(met.value).startswith(f"{tmp_path / 'file'} cannot be imported: it is ")


def test_where_no_file_can_be_written_is_named(tmp_path):
    write(tmp_path / "file", named(WORLD, PLAIN), manifest_of())
    store = Store(tmp_path / "store")
    name, manifest = archive.take_in(store, tmp_path / "file", lambda _manifest, _world: None)
    before = sorted(os.listdir(tmp_path))
    long = tmp_path / ("x" * 300)
    for path, kind, of in (
        (tmp_path, IsADirectoryError, tmp_path),
        (tmp_path / "none/file", FileNotFoundError, tmp_path / "none"),
        (tmp_path / "file/file", NotADirectoryError, tmp_path / "file"),
        (long, OSError, long),
    ):
        with pytest.raises(kind) as met:
            archive.write(store.objects, manifest, path)
        assert met.value.filename == str(of), met.value
    assert sorted(os.listdir(tmp_path)) == before
    archive.write(store.objects, manifest, tmp_path / "file")
    assert archive.take_in(store, tmp_path / "file", lambda _manifest, _world: None)[0] != name


@pytest.mark.slow
def test_a_small_file_that_would_fill_the_disk_is_refused(tmp_path):
    bomb = layer(TOP, FILE | {"s": 200 << 20}, *(({"at": at << 20}, bytes(1 << 20)) for at in range(200)))
    assert len(bomb) < 1 << 20
    write(tmp_path / "file", named(WORLD, PLAIN, bomb), manifest_of(chain=(bomb,)))
    (tmp_path / "made").mkdir()
    with pytest.raises(StoreCorrupt, match="hold more than 104857600 bytes"):
        archive.read(tmp_path / "file", tmp_path / "made", most_bytes=100 << 20)


def test_a_hole_of_any_size_is_only_a_hole(tmp_path):
    """A size is a claim that costs nothing; only bytes do."""
    hole = layer(TOP, FILE | {"s": 1 << 60}, ({"at": 0}, b"data"))
    write(tmp_path / "file", named(WORLD, PLAIN, hole), manifest_of(chain=(hole,)))
    (tmp_path / "made").mkdir()
    archive.read(tmp_path / "file", tmp_path / "made")


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_file_with_any_change_is_refused(tmp_path_factory, data):
    place = tmp_path_factory.mktemp("fuzz")
    write(place / "file", named(WORLD, PLAIN), manifest_of())
    whole = (place / "file").read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    change = data.draw(st.binary(max_size=4))
    if whole[at : at + len(change)] == change and change:
        return
    cut = data.draw(st.integers(0, 4))
    changed = whole[:at] + change + whole[at + (len(change) or cut or 1) :]
    if changed == whole:
        return
    (place / "file").write_bytes(changed)
    (place / "made").mkdir()
    try:
        manifest, _things = archive.read(place / "file", place / "made")
    except StoreCorrupt:
        return
    assert manifest == manifest_of(), "what is accepted says the same"


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)
TREES = st.recursive(
    st.one_of(st.binary(max_size=3000), NAMES, st.none()), lambda inner: st.dictionaries(NAMES, inner, max_size=4)
)


def plant(tree, at):
    for name, content in tree.items():
        if isinstance(content, dict):
            (at / name).mkdir()
            plant(content, at / name)
            os.utime(at / name, ns=(5, len(content)))
        elif isinstance(content, bytes):
            (at / name).write_bytes(content)
            (at / name).chmod(0o600 | len(content) % 512)
            os.setxattr(at / name, "user.size", str(len(content)).encode())
        elif content is None:
            os.mkfifo(at / name)
        else:
            (at / name).symlink_to(content)


def seen(top):
    found = {}
    for path in sorted(top.rglob("*")):
        info = path.lstat()
        told = [info.st_mode, info.st_mtime_ns]
        if path.is_symlink():
            told.append(os.readlink(path))
        elif path.is_file():
            told += [path.read_bytes(), os.getxattr(path, "user.size")]
        found[str(path.relative_to(top))] = told
    return found


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(tree=st.dictionaries(NAMES, TREES, max_size=5))
def test_what_is_packed_is_unpacked_as_it_was(tmp_path_factory, tree):
    place = tmp_path_factory.mktemp("pack")
    for name in ("from", "to", "objects"):
        (place / name).mkdir()
    plant(tree, place / "from")
    fd = os.open(place / "objects/new", os.O_WRONLY | os.O_CREAT, 0o600)
    digest = pack(str(place / "from"), None, os.getuid(), "", [fd])[0]["digest"]
    os.close(fd)
    os.rename(place / "objects/new", place / "objects" / digest)
    fd = os.open(place / "objects", os.O_RDONLY | os.O_DIRECTORY)
    unpack([(str(place / "to"), digest)], (os.getuid(), os.getgid()), "", True, [fd])
    os.close(fd)
    assert seen(place / "to") == seen(place / "from")
    assert sorted(path.name for path in place.iterdir()) == ["from", "objects", "to"]


def test_a_writer_splits_what_is_longer_than_a_piece():
    chunks = []
    writer = Writer(chunks.append)
    writer.entry(Entry(0, "", "directory", 0o755))
    writer.entry(Entry(1, "f", "file", 0o644, size=3 << 20))
    writer.piece(0, b"x" * (3 << 20))
    writer.end()
    pieces = [thing for thing in parse(chunks) if isinstance(thing, Piece)]
    assert b"".join(piece.content for piece in pieces) == b"x" * (3 << 20)
