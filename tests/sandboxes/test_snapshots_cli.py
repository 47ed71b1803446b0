"""`envgym snapshots`: what is kept can be seen, moved to another store and removed, without a sandbox."""

import json

import pytest
from envgym_sandboxes.durable.cli import snapshots_command
from envgym_sandboxes.durable.records import decode_manifest, encode_manifest
from typer.testing import CliRunner

from envgym.errors import SandboxUnavailable, SnapshotGone, StoreCorrupt
from envgym.task import World

pytestmark = [pytest.mark.namespaces, pytest.mark.timeout(60)]


def ask(*arguments, store):
    done = CliRunner().invoke(
        snapshots_command, [*map(str, arguments), "--store", str(store)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def taken(make, run):
    async def main():
        async with make() as backend, await backend.create(World()) as sandbox:
            await sandbox.exec("head -c 100000 /dev/urandom > f")
            first = await sandbox.snapshot(durable=True)
            await sandbox.exec("echo x > g; sleep 100 &")
            return first, await sandbox.snapshot(durable=True)

    return run(main())


def test_durable_snapshots_are_listed_moved_and_released(make, run, kept, taken, tmp_path):
    first, second = taken
    told = json.loads(ask("list", "--json", store=kept))
    rows = {row["id"]: row for row in told["snapshots"]}
    assert set(rows) == {first.id, second.id}
    assert rows[second.id]["partial"]
    assert rows[first.id] | {"created": 0, "bytes": 0} == {
        "id": first.id, "backend": "namespace", "created": 0, "references": 1, "partial": False,
        "digest": first.digest, "image": "host", "bytes": 0,
    }  # fmt: skip
    assert 100_000 < rows[first.id]["bytes"] < told["bytes"]
    text = ask("list", store=kept)
    assert text.count("\n") == 3
    assert "namespace" in text
    assert "1 held  partial" in text

    file, other = tmp_path / "file", tmp_path / "other"
    ask("export", first.id, file, store=kept)
    imported = json.loads(ask("import", file, "--json", store=other))
    assert (imported["digest"], imported["durable"]) == (first.digest, True)
    assert imported["id"] != first.id
    assert "gone" in ask("release", imported["id"], store=other)
    assert "0 in" in ask("list", store=other)
    assert list((other / "objects").iterdir()) == []

    async def retain():
        await make().retain(first)

    run(retain())
    assert "1 held" in ask("release", first.id, store=kept)
    run(retain())
    assert "gone" in ask("release", "--all", first.id, second.id, store=kept)
    with pytest.raises(SnapshotGone):
        ask("release", first.id, store=kept)
    assert ask("gc", store=kept) == "nothing to remove\n"
    (kept / "objects" / ("0" * 64)).write_bytes(b"left")
    assert json.loads(ask("gc", "--json", store=kept)) == [f"file {kept}/objects/{'0' * 64}"]


def test_a_damaged_snapshot_is_listed_with_what_is_wrong(kept, taken):
    first, second = taken
    path = kept / "snapshots" / f"{first.id}.json"
    path.write_bytes(path.read_bytes().replace(b"namespace", b"namespacf"))
    rows = {row["id"]: row for row in json.loads(ask("list", "--json", store=kept))["snapshots"]}
    assert "its checksum does not match" in rows[first.id]["damaged"]
    assert "damaged" not in rows[second.id]
    assert "damaged: " in ask("list", store=kept)
    with pytest.raises(StoreCorrupt, match="remove it"):
        ask("gc", store=kept)


def test_an_empty_store_has_nothing(tmp_path):
    assert "0 in" in ask("list", store=tmp_path / "none")
    assert ask("gc", store=tmp_path / "none") == "nothing to remove\n"
    with pytest.raises(SnapshotGone):
        ask("export", "0" * 24, tmp_path / "file", store=tmp_path / "none")


def test_what_stands_on_another_image_is_refused(kept, taken, tmp_path):
    first, _second = taken
    path = kept / "snapshots" / f"{first.id}.json"
    manifest = decode_manifest(path.read_bytes())
    identity = manifest.identity | {"machine": "vax"}
    path.write_bytes(encode_manifest(manifest.model_copy(update={"identity": identity})))
    ask("export", first.id, tmp_path / "file", store=kept)
    with pytest.raises(SandboxUnavailable, match="machine 'vax' there"):
        ask("import", tmp_path / "file", store=tmp_path / "other")
    assert list((tmp_path / "other/objects").iterdir()) == []
