"""The symbol index of the languages that have a grammar: what is defined where, and where a name is used."""

import pytest
from envgym_environments.code_repair.symbols.grammars import LANGUAGE_OF, read_by_grammar
from envgym_environments.code_repair.symbols.index import SUFFIXES, Index
from hypothesis import given
from hypothesis import strategies as st

JAVASCRIPT = """'use strict'
const { join } = require('node:path')
const LIMIT = 5 // not Router

/**
 * Finds a handler.
 */
function Router (options) {
  function inner () {}
  this.LIMIT = LIMIT
}
Router.prototype.on = function on (method, path) {
  return 'Router ' + path
}
class Lazy extends Router {
  static of (x) { return new Lazy(x) }
}
exports.parse = (text) => text.trim()
"""
TYPESCRIPT = """import { Base } from "./base";
// What a plug fits.
export interface Socket extends Base<number> {
    plug(name: string): void;
}
export type Name = string | undefined;
export enum Mode { On, Off }
export abstract class Plug<T> extends Base<T> implements Socket {
    size = 1;
    abstract plug(name: string): void;
    private async fit(at: number): Promise<T> {
        return await this.other(at);
    }
}
export const shorten = (name: Name): Name => name?.slice(0, 1);
declare function given(x: number): string;
"""
GO = """package stack

// Stack holds ints.
type Stack struct {
	items []int
}

type Pusher interface {
	Push(x int) error
}

const Limit, Most = 10, 20

// Push adds one.
func (s *Stack) Push(x int) error {
	s.items = append(s.items, x)
	return nil
}

func New[T any](size int) *Stack { return &Stack{} }
"""
RUST = """//! A crate.
use std::fmt;

/// A point.
#[derive(Clone)]
pub struct Point<T> { x: T }

pub trait Area: Sized {
    fn area(&self) -> f64;
}

impl<T: Copy> Area for Point<T> {
    fn area(&self) -> f64 { 0.0 }
}

pub const ORIGIN: Point<i32> = Point { x: 0 };
macro_rules! point { ($x:expr) => { Point { x: $x } }; }

mod inner {
    pub(crate) fn twice(x: i32) -> i32 { x * 2 }
}
"""
JAVA = """package a.b;

/** Keeps things. */
public class Box<T> extends Base<T> implements Holder, java.io.Serializable {
    private static final int MOST = 3, LEAST = 1;

    public Box(int size) { super(size); }

    @Override
    public <K> K get(K key) throws Missing {
        return "Missing".equals(key) ? null : key;
    }

    enum Kind { SMALL, LARGE }
}
interface Holder { int size(); }
"""
C = """#include <stdio.h>
#define MOST 5
#define TWICE(x) ((x) * 2)

/* A pair. */
typedef struct pair { int a, b; } pair_t;
enum kind { SMALL, LARGE };
static struct pair zero;

int sum(const pair_t *pair);

static char *name_of(enum kind kind)
{
    int sum = 0; /* sum */
    return kind == SMALL ? "sum" : "large";
}
"""
CPP = """#include <vector>
namespace net {
// A way out.
template <typename T>
class Sink : public Base, private other::Kept<T> {
 public:
  explicit Sink(int size);
  virtual void Append(const char* bytes, size_t n) = 0;
  int size() const { return size_; }
 private:
  int size_;
};
using Bytes = std::vector<char>;
}  // namespace net

void net::Sink::Append(const char* bytes, size_t n) { Flush(bytes); }
"""
FILES = {
    "a.js": (
        JAVASCRIPT,
        [
            ("constant", "LIMIT", (3, 3), "const LIMIT = 5", ""),
            ("function", "Router", (8, 11), "function Router (options)", "Finds a handler."),
            ("method", "Router.on", (12, 14), "Router.prototype.on = function on (method, path)", ""),
            ("class", "Lazy", (15, 17), "class Lazy extends Router", ""),
            ("method", "Lazy.of", (16, 16), "static of (x)", ""),
            ("method", "parse", (18, 18), "exports.parse = (text) =>", ""),
        ],
    ),
    "a.ts": (
        TYPESCRIPT,
        [
            ("class", "Socket", (3, 5), "export interface Socket extends Base<number>", "What a plug fits."),
            ("method", "Socket.plug", (4, 4), "plug(name: string): void", ""),
            ("class", "Name", (6, 6), "export type Name = string | undefined", ""),
            ("class", "Mode", (7, 7), "export enum Mode", ""),
            ("class", "Plug", (8, 14), "export abstract class Plug<T> extends Base<T> implements Socket", ""),
            ("method", "Plug.plug", (10, 10), "abstract plug(name: string): void", ""),
            ("method", "Plug.fit", (11, 13), "private async fit(at: number): Promise<T>", ""),
            ("function", "shorten", (15, 15), "export const shorten = (name: Name): Name =>", ""),
            ("function", "given", (16, 16), "function given(x: number): string", ""),
        ],
    ),
    "a.go": (
        GO,
        [
            ("class", "Stack", (4, 6), "type Stack struct", "Stack holds ints."),
            ("class", "Pusher", (8, 10), "type Pusher interface", ""),
            ("method", "Pusher.Push", (9, 9), "Push(x int) error", ""),
            ("constant", "Limit", (12, 12), "const Limit, Most = 10, 20", ""),
            ("constant", "Most", (12, 12), "const Limit, Most = 10, 20", ""),
            ("method", "Stack.Push", (15, 18), "func (s *Stack) Push(x int) error", "Push adds one."),
            ("function", "New", (20, 20), "func New[T any](size int) *Stack", ""),
        ],
    ),
    "a.rs": (
        RUST,
        [
            ("class", "Point", (6, 6), "pub struct Point<T>", "A point."),
            ("class", "Area", (8, 10), "pub trait Area: Sized", ""),
            ("method", "Area.area", (9, 9), "fn area(&self) -> f64", ""),
            ("method", "Point.area", (13, 13), "fn area(&self) -> f64", ""),
            ("constant", "ORIGIN", (16, 16), "pub const ORIGIN: Point<i32> = Point { x: 0 }", ""),
            ("function", "point", (17, 17), "macro_rules! point { ($x:expr) => { Point { x: $x } }; }", ""),
            ("function", "inner.twice", (20, 20), "pub(crate) fn twice(x: i32) -> i32", ""),
        ],
    ),
    "a.java": (
        JAVA,
        [
            (
                "class",
                "Box",
                (4, 15),
                "public class Box<T> extends Base<T> implements Holder, java.io.Serializable",
                "Keeps things.",
            ),
            ("constant", "Box.MOST", (5, 5), "private static final int MOST = 3, LEAST = 1", ""),
            ("constant", "Box.LEAST", (5, 5), "private static final int MOST = 3, LEAST = 1", ""),
            ("method", "Box.Box", (7, 7), "public Box(int size)", ""),
            ("method", "Box.get", (9, 12), "@Override public <K> K get(K key) throws Missing", ""),
            ("class", "Box.Kind", (14, 14), "enum Kind", ""),
            ("class", "Holder", (16, 16), "interface Holder", ""),
            ("method", "Holder.size", (16, 16), "int size()", ""),
        ],
    ),
    "a.c": (
        C,
        [
            ("constant", "MOST", (2, 2), "#define MOST 5", ""),
            ("function", "TWICE", (3, 3), "#define TWICE(x) ((x) * 2)", ""),
            ("class", "pair_t", (6, 6), "typedef struct pair { int a, b; } pair_t", "A pair."),
            ("class", "kind", (7, 7), "enum kind", ""),
            ("function", "sum", (10, 10), "int sum(const pair_t *pair)", ""),
            ("function", "name_of", (12, 16), "static char *name_of(enum kind kind)", ""),
        ],
    ),
    "a.cc": (
        CPP,
        [
            (
                "class",
                "net.Sink",
                (4, 12),
                "template <typename T> class Sink : public Base, private other::Kept<T>",
                "A way out.",
            ),
            ("method", "net.Sink.Sink", (7, 7), "explicit Sink(int size)", ""),
            ("method", "net.Sink.Append", (8, 8), "virtual void Append(const char* bytes, size_t n) = 0", ""),
            ("method", "net.Sink.size", (9, 9), "int size() const", ""),
            ("class", "net.Bytes", (13, 13), "using Bytes = std::vector<char>", ""),
            ("method", "net.Sink.Append", (16, 16), "void net::Sink::Append(const char* bytes, size_t n)", ""),
        ],
    ),
}


@pytest.mark.parametrize("path", FILES)
def test_an_outline_holds_what_is_defined_with_lines_and_signatures(path: str) -> None:
    text, rows = FILES[path]
    (found,) = Index({path: text}).files.values()
    assert found is not None
    assert [(one.kind, one.qualname, one.lines, one.signature, one.summary) for one in found.symbols] == rows
    lines = text.split("\n")
    for one in found.symbols:
        assert one.name in lines[one.line - 1]
        assert one.line in found.uses[one.name.lstrip("~")]


@pytest.mark.parametrize(
    ("path", "name", "bases"),
    [
        ("a.js", "Lazy", ("Router",)),
        ("a.ts", "Plug", ("Base", "Socket")),
        ("a.java", "Box", ("Base", "Holder", "java.io.Serializable")),
        ("a.cc", "net.Sink", ("Base", "other::Kept")),
    ],
)
def test_a_class_knows_its_bases(path: str, name: str, bases: tuple[str, ...]) -> None:
    place = Index({path: FILES[path][0]}).named(name)[0]
    assert tuple(base.partition("<")[0] for base in place.symbol.bases) == bases


def test_typescript_with_markup_is_read_as_such() -> None:
    text = (
        "export interface Props { name: string }\n"
        "export const Greeting = ({ name }: Props) => <b title={name}>Hello, {titled(name)}</b>\n"
        'export function Page() {\n  return <main><Greeting name="Ada" /></main>\n}\n'
        "class Old extends React.Component<Props> { render() { return <i>{this.props.name}</i> } }\n"
    )
    index = Index({"a.tsx": text})
    assert not index.unread
    found = [(at.symbol.kind, at.symbol.qualname, at.symbol.line) for at in index.places()]
    assert found == [
        ("class", "Props", 1),
        ("function", "Greeting", 2),
        ("function", "Page", 3),
        ("class", "Old", 6),
        ("method", "Old.render", 6),
    ]
    assert list(index.uses("titled")) == [("a.tsx", 2)]
    assert list(index.uses("Greeting"))[-1] == ("a.tsx", 4)
    assert not list(index.uses("Hello"))


def test_uses_stand_in_code_only() -> None:
    index = Index({path: text for path, (text, _) in FILES.items()})
    assert list(index.uses("Router")) == [("a.js", 8), ("a.js", 12), ("a.js", 15)]
    assert list(index.uses("sum")) == [("a.c", 10), ("a.c", 14)]
    assert list(index.uses("Missing")) == [("a.java", 10)]
    assert list(index.uses("items")) == [("a.go", 5), ("a.go", 16)]
    assert list(index.uses("x"))[-1] == ("a.ts", 16)


def test_a_type_goes_on_in_other_files_of_its_folder_but_not_in_other_folders() -> None:
    more = "package stack\n\nfunc (s Stack) Len() int { return len(s.items) }\n"
    index = Index({"lib/stack.go": GO, "lib/more.go": more, "other/more.go": more})
    (stack,) = [at for at in index.named("Stack") if at.symbol.kind == "class"]
    members = [(at.path, at.symbol.qualname) for _, at in index.members(stack)]
    assert members == [("lib/stack.go", "Stack.Push"), ("lib/more.go", "Stack.Len")]
    inherited = Index({"a.js": "class A { one () {} }\n", "b.js": "class B extends A { two () {} }\n"})
    (place,) = inherited.named("B")
    assert [at.symbol.qualname for _, at in inherited.members(place)] == ["B.two", "A.one"]


def test_what_cannot_be_read_is_named_and_a_broken_place_costs_its_own_symbols_only() -> None:
    index = Index({"a.go": "func (", "b.go": GO.replace("return nil", "return (")})
    assert index.unread == ("a.go",)
    assert [at.symbol.name for at in index.places()][:3] == ["Stack", "Pusher", "Push"]
    assert set(LANGUAGE_OF) < set(SUFFIXES)


@given(st.sampled_from(sorted(FILES)), st.data())
def test_no_text_breaks_a_reader(path: str, data: st.DataObject) -> None:
    text = FILES[path][0]
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.sampled_from(["{", "}", '"', "/*", "class ", "\0", "é", "\ud800", "<", "::", "\n\n"]))
    cut = data.draw(st.integers(0, 40))
    changed = text[:at] + put + text[at + cut :]
    found = read_by_grammar(changed, LANGUAGE_OF[path[1:]])
    rows = changed.count("\n") + 1
    for one in found.symbols if found is not None else ():
        assert 1 <= one.lines[0] <= one.line <= one.lines[1] <= rows
        assert one.qualname
        assert len(one.signature) <= 160
