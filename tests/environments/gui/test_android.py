"""AndroidControl's release: records that another writer made are read and unpacked; damage is named."""

import contextlib
import gzip
import json
import struct

import pytest
from envgym_environments.gui.grounding.android import box_at, recorded, unpack
from envgym_environments.gui.grounding.folders import entry_of, folder_tasks
from envgym_environments.gui.grounding.records import checksum, example, fields, records
from envgym_environments.gui.grounding.rewards import Truth, gui_r1, ui_r1
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from envgym.cli import run

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 8 + struct.pack(">II", 1080, 2400)
MESSAGES = {
    "Rect": {"left": (1, "int32"), "top": (2, "int32"), "right": (3, "int32"), "bottom": (4, "int32")},
    "Node": {
        "unique_id": (1, "int32"), "bounds_in_screen": (2, "Rect"), "class_name": (3, "string"),
        "text": (7, "string"), "is_visible_to_user": (23, "bool"), "child_ids": (25, "int32*"),
    },
    "Tree": {"nodes": (1, "Node*")},
    "Window": {"layer": (4, "int32"), "title": (5, "string"), "tree": (11, "Tree")},
    "Forest": {"windows": (1, "Window*")},
    "BytesList": {"value": (1, "bytes*")},
    "FloatList": {"value": (1, "float*")},
    "Int64List": {"value": (1, "int64*")},
    "Feature": {"bytes_list": (1, "BytesList"), "float_list": (2, "FloatList"), "int64_list": (3, "Int64List")},
    "Entry": {"key": (1, "string"), "value": (2, "Feature")},  # of a map, as it is written
    "Features": {"feature": (1, "Entry*")},
    "Example": {"features": (1, "Features")},
}  # fmt: skip
"""As tensorflow/core/example and android_env/proto/a11y declare them, without what is not written here."""


def made():
    """The classes of these messages, by the protocol buffers' own library."""
    file = descriptor_pb2.FileDescriptorProto(name="envgym_test.proto", package="t", syntax="proto3")
    kinds = {name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}") for name in
             ("int32", "int64", "string", "bytes", "bool", "float")}  # fmt: skip
    for name, parts in MESSAGES.items():
        message = file.message_type.add(name=name)
        for part, (number, kind) in parts.items():
            field = message.field.add(name=part, number=number, label=3 if kind.endswith("*") else 1)
            if (kind := kind.rstrip("*")) in kinds:
                field.type = kinds[kind]
            else:
                field.type, field.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in MESSAGES}


T = made()


def crc32c(content):
    """By long division, one bit at a time."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc % 2 else 0)
    return crc ^ 0xFFFFFFFF


def framed(*contents):
    out = b""
    for content in contents:
        head = struct.pack("<Q", len(content))
        for part in (head, content):
            crc = crc32c(part)
            out += part + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
    return out


def written(**features):
    entries = []
    for key, values in features.items():
        if isinstance(values[0], int):
            feature = T["Feature"](int64_list=T["Int64List"](value=values))
        elif isinstance(values[0], float):
            feature = T["Feature"](float_list=T["FloatList"](value=values))
        else:
            values = [one.encode() if isinstance(one, str) else one for one in values]
            feature = T["Feature"](bytes_list=T["BytesList"](value=values))
        entries.append(T["Entry"](key=key, value=feature))
    return T["Example"](features=T["Features"](feature=entries)).SerializeToString()


def node(number, box, *, seen=True):
    rect = dict(zip(("left", "top", "right", "bottom"), box, strict=True))
    return T["Node"](
        unique_id=number, bounds_in_screen=rect, class_name="android.view.View", text="x" * 200,
        is_visible_to_user=seen, child_ids=[number + 1, number + 300],
    )  # fmt: skip


def forest(*windows):
    """Windows as (layer, nodes)."""
    return T["Forest"](
        windows=[T["Window"](layer=layer, title="w", tree=T["Tree"](nodes=nodes)) for layer, nodes in windows]
    ).SerializeToString()


SCREEN = forest(
    (2, [node(1, (0, 0, 1080, 2400)), node(2, (100, 200, 500, 300)), node(3, (110, 210, 200, 290), seen=False)]),
    (9, [node(4, (0, 2000, 1080, 2400)), node(5, (-40, 2100, 300, 2200))]),
)
ACTIONS = [
    {"action_type": "open_app", "app_name": "Clock"},
    {"action_type": "click", "x": 150, "y": 250},
    {"action_type": "input_text", "text": "tea"},
    {"action_type": "scroll", "direction": "down"},
    {"action_type": "long_press", "x": 10, "y": 2150},
    {"action_type": "navigate_back"},
    {"action_type": "wait"},
]


def episode(number, *, actions=ACTIONS, **changes):
    shown = [PNG + bytes([number, at]) for at in range(len(actions) + 1)]
    given = {
        "episode_id": [number], "goal": [f"goal {number}"], "screenshots": shown,
        "accessibility_trees": [SCREEN] * len(shown), "screenshot_widths": [1080] * len(shown),
        "screenshot_heights": [2400] * len(shown), "actions": [json.dumps(one) for one in actions],
        "step_instructions": [f"step {at}" for at in range(len(actions))], "unused": [1.5, -2.5],
    }  # fmt: skip
    return written(**(given | changes))


def release(folder):
    folder.mkdir()
    (folder / "android_control-00000-of-00002").write_bytes(gzip.compress(framed(episode(7), episode(8))))
    (folder / "android_control-00001-of-00002").write_bytes(gzip.compress(framed(episode(9))))
    (folder / "splits.json").write_text(json.dumps({"train": [7, 9], "validation": [], "test": [8]}))
    return folder


def test_a_checksum_is_the_published_one():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C (RFC 3720, B.4)
    for content in (b"", b"123456789", bytes(range(256)) * 3):
        crc = crc32c(content)
        assert checksum(content) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.lists(st.binary(max_size=9), min_size=1, max_size=4)
        | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
        max_size=4,
    )
)
def test_an_example_has_the_features_that_were_written(features):
    assert example(written(**features)) == features


@given(st.binary(max_size=40))
def test_bytes_that_are_no_message_are_said_to_be_none(content):
    for read in (lambda: list(fields(content)), lambda: example(content), lambda: box_at(content, 1, 1)):
        with contextlib.suppress(ValueError):  # and nothing else
            read()


def test_a_release_is_unpacked_once_and_asks_for_every_action(tmp_path):
    source, out = release(tmp_path / "in"), tmp_path / "out"
    with pytest.raises(ValueError, match="envgym grounding unpack"):
        folder_tasks(source)
    assert run(["grounding", "unpack", str(source), "--out", str(out)]) == 0
    tasks = list(folder_tasks(out))
    entries = [entry_of(task.metadata) for task in tasks]
    assert [task.split for task in tasks] == ["train"] * 7 + ["test"] * 7 + ["train"] * 7
    assert [entry.truth for entry in entries[:7]] == [
        Truth("open_app", text="Clock"),
        Truth("click", (100.0, 200.0, 500.0, 300.0), (150.0, 250.0)),
        Truth("type", text="tea"),
        Truth("scroll", text="down"),
        Truth("long_press", (-40.0, 2100.0, 300.0, 2200.0), (10.0, 2150.0)),
        Truth("press_back"),
        Truth("wait"),
    ]
    assert [entry.content() for entry in entries[7:9]] == [PNG + bytes([8, 0]), PNG + bytes([8, 1])]
    assert entries[1].instruction == "goal 7\nNow: step 1"
    assert len(list((out / "images").iterdir())) == 21, "of the last screen nothing is asked"
    assert unpack(source, tmp_path / "goals", most=2, goals=True) == 2
    assert entry_of(folder_tasks(tmp_path / "goals")[1].metadata).instruction == "goal 7"
    with pytest.raises(ValueError, match="holds other things"):
        unpack(source, out)


def test_the_box_of_a_click_is_the_smallest_that_is_seen_in_the_foremost_window():
    assert box_at(SCREEN, 150, 250) == (100, 200, 500, 300), "what cannot be seen takes no click"
    assert box_at(SCREEN, 600, 250) == (0, 0, 1080, 2400)
    assert box_at(SCREEN, 10, 2150) == (-40, 2100, 300, 2200)
    assert box_at(SCREEN, 500, 300) == (0, 0, 1080, 2400), "right and bottom are outside"
    assert box_at(SCREEN, 5000, 1) is None
    truth = Truth("click", (100.0, 200.0, 500.0, 300.0), (150.0, 250.0))
    far = (
        "<think></think><answer>[{'action': 'click', 'point': [490, 290], 'input_text': 'no input text'}]</answer>"
    )
    assert (ui_r1(far, truth)["point"], gui_r1(far, truth)["accuracy"]) == (1.0, 1.0), "in the box, 340 pixels away"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda: framed(episode(1))[:-9], "record 0: it is cut off after"),
        (lambda: framed(episode(1)) + b"12345", "record 1: its length has another checksum"),
        (lambda: framed(episode(1))[:-1] + b"?", "record 0: its bytes have another checksum"),
        (lambda: gzip.compress(framed(episode(1)))[:-20], "record 0: "),
        (lambda: framed(b"\x0a\xff"), "record 0: a number is cut off|record 0: field 1 is cut off"),
        (lambda: framed(written(goal=["x"])), "record 0: it has no 'actions'"),
        (lambda: framed(episode(1, actions=[[1]])), "record 0: an action is no JSON object"),
        (lambda: framed(episode(1, goal=["a", "b"])), "record 0: it has 2 goals"),
        (lambda: framed(episode(1, accessibility_trees=[SCREEN])), "1 accessibility_trees for 8"),
        (lambda: framed(episode(1, screenshots=[3])), "record 0: "),
    ],
)
def test_what_is_damaged_is_named_with_its_file_and_record(tmp_path, content, said):
    file = tmp_path / "android_control-00000-of-00001"
    file.write_bytes(content())
    with pytest.raises(ValueError, match=said) as raised:
        list(recorded(file))
    assert str(raised.value).startswith(str(file))


def test_records_without_compression_are_read_and_other_files_are_none(tmp_path):
    file = tmp_path / "some.tfrecord"
    file.write_bytes(framed(b"one", b"", b"three"))
    assert list(records(file)) == [b"one", b"", b"three"]
    (tmp_path / "other").write_text("no records at all")
    with pytest.raises(ValueError, match="no file of records"):
        unpack(tmp_path / "other", tmp_path / "out")
