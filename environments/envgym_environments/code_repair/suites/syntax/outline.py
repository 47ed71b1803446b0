"""What a file of another language than Python defines, by names with what they lie in, and where identifiers stand.

Read off the syntax tree, so strings and comments count nowhere. Bodies of functions are not entered: what is
defined inside of one is not seen from outside.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tree_sitter import Node

from envgym_environments.code_repair.suites.suite import Language
from envgym_environments.code_repair.suites.syntax.grammar import GRAMMARS, TSX

__all__ = ["Defined", "Kind", "definitions", "identifiers", "parsed", "rows_of", "summary_of", "text_of"]

Kind = Literal["class", "function", "method", "constant"]

_SCRIPT: dict[str, Kind] = {
    "class_declaration": "class",
    "function_declaration": "function",
    "generator_function_declaration": "function",
    "method_definition": "method",
    "variable_declarator": "constant",
    "assignment_expression": "method",
}
_C: dict[str, Kind] = {
    "struct_specifier": "class",
    "union_specifier": "class",
    "enum_specifier": "class",
    "type_definition": "class",
    "function_definition": "function",
    "function_declarator": "function",
    "preproc_def": "constant",
    "preproc_function_def": "function",
}
_KINDS: dict[Language, dict[str, Kind]] = {
    "javascript": _SCRIPT,
    "typescript": {
        **_SCRIPT,
        "abstract_class_declaration": "class",
        "interface_declaration": "class",
        "type_alias_declaration": "class",
        "enum_declaration": "class",
        "function_signature": "function",
        "method_signature": "method",
        "abstract_method_signature": "method",
    },
    "go": {
        "type_spec": "class",
        "type_alias": "class",
        "function_declaration": "function",
        "method_declaration": "method",
        "method_elem": "method",
        "method_spec": "method",
        "const_spec": "constant",
        "var_spec": "constant",
    },
    "rust": {
        "struct_item": "class",
        "enum_item": "class",
        "union_item": "class",
        "trait_item": "class",
        "type_item": "class",
        "function_item": "function",
        "function_signature_item": "function",
        "macro_definition": "function",
        "const_item": "constant",
        "static_item": "constant",
    },
    "java": {
        "class_declaration": "class",
        "interface_declaration": "class",
        "enum_declaration": "class",
        "record_declaration": "class",
        "annotation_type_declaration": "class",
        "method_declaration": "method",
        "constructor_declaration": "method",
        "variable_declarator": "constant",
    },
    "c": _C,
    "c++": {**_C, "class_specifier": "class", "alias_declaration": "class"},
}
_ALIASES = frozenset({"type_definition", "type_alias", "type_item", "alias_declaration", "type_alias_declaration"})
_SCOPES = frozenset({"impl_item", "mod_item", "namespace_definition", "internal_module"})
_SPECIFIERS = frozenset({"struct_specifier", "union_specifier", "enum_specifier", "class_specifier"})
"""Of C and C++: where one has no body, a type is used and not defined."""
_CODE = frozenset({"arrow_function", "function_expression", "generator_function"})
_WRAPPERS = frozenset({"export_statement", "template_declaration", "lexical_declaration", "variable_declaration"})
_BASES = frozenset(
    {
        "class_heritage",
        "extends_clause",
        "implements_clause",
        "extends_type_clause",
        "superclass",
        "super_interfaces",
    }
    | {"extends_interfaces", "base_class_clause", "trait_bounds", "type_list"}
)
_TYPES = frozenset(
    {"identifier", "type_identifier", "scoped_type_identifier", "qualified_identifier", "member_expression"}
)


@dataclass(frozen=True, slots=True)
class Defined:
    """One definition. name: with what it lies in, by dots. at: its own name. body: None where it has none.

    whole: from its first word (export, template) to its end. bases: of a class, as written.
    """

    name: str
    kind: Kind
    node: Node
    at: Node
    whole: Node
    body: Node | None
    bases: tuple[str, ...] = ()


def text_of(node: Node) -> str:
    """A node's text."""
    return (node.text or b"").decode("utf-8", "replace")


def definitions(root: Node, language: Language) -> list[Defined]:
    """What a file defines, in text order."""
    return list(_inside(root, language, "", of_class=False))


def _inside(node: Node, language: Language, scope: str, *, of_class: bool) -> Iterator[Defined]:
    for child in node.named_children:
        kind = _KINDS[language].get(child.type)
        found = [] if kind is None else list(_defined(child, kind, language, scope, of_class=of_class))
        if found:
            yield from found
            if found[0].kind == "class" and child.type not in _ALIASES:
                yield from _inside(found[0].body or child, language, f"{found[0].name}.", of_class=True)
            continue
        if child.type in _SCOPES:
            named = child.child_by_field_name("type") or child.child_by_field_name("name")
            within = f"{scope}{_plain(named)}." if named is not None else scope
            yield from _inside(child, language, within, of_class=child.type == "impl_item")
        elif kind is None and child.type not in ("block", "compound_statement", "statement_block", "comment"):
            yield from _inside(child, language, scope, of_class=of_class)


def _defined(node: Node, kind: Kind, language: Language, scope: str, *, of_class: bool) -> Iterator[Defined]:
    names, body = _names(node), node.child_by_field_name("body")
    if not names or (node.type in _SPECIFIERS and body is None):
        return
    value = node.child_by_field_name("value") or node.child_by_field_name("right")
    if node.type == "assignment_expression" and (value is None or value.type not in _CODE):
        return
    if kind != "class" and value is not None and value.type in _CODE:
        kind, body = kind if kind == "method" else "function", value.child_by_field_name("body")
    if node.type == "type_spec":
        body = node.child_by_field_name("type")
    owner = _receiver(node) if language == "go" else ""
    if kind == "function" and (of_class or "::" in text_of(names[0])):
        kind = "method"
    bases = tuple(_bases(node, body)) if kind == "class" else ()
    for at in names:
        name = f"{scope}{f'{owner}.' * bool(owner)}{_plain(at)}"
        yield Defined(name, kind, node, at, _whole(node), body, bases)


def _names(node: Node) -> list[Node]:
    """The nodes of its name, or names; none where a place that does not parse has lost it."""
    several = node.type in ("const_spec", "var_spec")
    found = node.children_by_field_name("name") if several else [_name(node)]
    return [at for at in found if at is not None and at.is_named and _plain(at)]


def _name(node: Node) -> Node | None:
    """The node of its name: behind the declarators of C, before the value of a constant."""
    if node.type == "function_declarator" and _whole(node).type not in ("declaration", "field_declaration"):
        return None  # of a type, of a parameter
    found = next(filter(None, map(node.child_by_field_name, ("name", "declarator", "left"))), None)
    while found is not None and (inner := found.child_by_field_name("declarator")) is not None:
        found = inner
    if found is None or found.type in ("array_pattern", "object_pattern"):
        return None
    return found if len(text_of(found)) <= 200 else None


def _plain(node: Node) -> str:
    """A name by dots, without type arguments."""
    text, before = text_of(node), ""
    while text != before:  # one within another
        before, text = text, re.sub(r"(?<!operator)<[^<>]*>", "", text)
    text = text.replace("::", ".").strip(" *&")
    return text.replace(".prototype.", ".").removeprefix("module.").removeprefix("exports.")


def _receiver(node: Node) -> str:
    """The type whose method a function of Go is."""
    found = node.child_by_field_name("receiver")
    words = text_of(found).strip("() ").partition("[")[0].split() if found is not None else []
    return words[-1].lstrip("*") if words else ""


def _whole(node: Node) -> Node:
    """With what stands before it on its way: the declaration around a declarator, export, template."""
    above = node.parent
    if node.type == "assignment_expression" and above is not None and above.type == "expression_statement":
        return above
    if node.type in ("function_declarator", "variable_declarator"):
        while above is not None and above.type in ("pointer_declarator", "reference_declarator"):
            node, above = above, above.parent
        if above is not None and "declaration" in above.type:
            node, above = above, above.parent
    while above is not None and (above.type in _WRAPPERS or _only(above)):
        node, above = above, above.parent
    return node


def _only(node: Node) -> bool:
    """Whether a declaration of Go declares one thing, so that its word belongs to that."""
    return node.type in ("type_declaration", "const_declaration", "var_declaration") and node.named_child_count == 1


def _bases(node: Node, body: Node | None) -> Iterator[str]:
    for child in node.named_children:
        if body is not None and child.id == body.id:
            continue
        if child.type in _TYPES and node.type in _BASES:
            yield text_of(child)
        elif child.type in _BASES:
            yield from _bases(child, None)
        elif node.type in _BASES and child.named_children and "argument" not in child.type:
            first = child.child_by_field_name("name") or child.named_children[0]
            yield text_of(first)


def identifiers(root: Node) -> Iterator[tuple[str, int]]:
    """(identifier, line from 1) wherever one stands in code."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type.endswith("identifier") and not node.named_child_count:
            yield text_of(node), node.start_point.row + 1
        waiting += reversed(node.named_children)


def summary_of(whole: Node) -> str:
    """The first line of the comment right before a definition, without what marks it as one."""
    rows: list[str] = []
    before, row = whole.prev_named_sibling, whole.start_point.row
    while before is not None and row - before.end_point.row <= 1:
        if "comment" in before.type:
            rows[:0] = text_of(before).splitlines()
        elif before.type != "attribute_item":
            break
        row, before = before.start_point.row, before.prev_named_sibling
    return next((said for line in rows if (said := line.strip().strip("/*! ").strip())), "")


def rows_of(node: Node) -> tuple[int, int]:
    """First and last row, from 1; a node that ends with a line end ends on that line."""
    first, end = node.start_point.row, node.end_point
    return first + 1, max(first, end.row - (end.column == 0)) + 1


def parsed(text: str, language: Language, *, markup: bool = False) -> Node:
    """The root of a text's syntax tree. markup: it is TypeScript with JSX in it."""
    parser = TSX if markup else GRAMMARS[language].parser
    return parser.parse(text.encode("utf-8", "surrogatepass")).root_node
