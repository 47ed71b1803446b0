"""What the operators must know of a language: the names that its grammar gives to the things they look at.

A grammar comes from a wheel of its own (the extra ``languages``). Adding a language is adding a row here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tree_sitter
import tree_sitter_c
import tree_sitter_cpp
import tree_sitter_go
import tree_sitter_java
import tree_sitter_javascript
import tree_sitter_rust
import tree_sitter_typescript

from envgym_environments.code_repair.suites.suite import Language

__all__ = ["GRAMMARS", "TSX", "Grammar"]

_Kinds = frozenset[str]


@dataclass(frozen=True)
class Grammar:
    """Kinds of nodes by the part they play; a kind that a language does not have is absent.

    functions: what has a name and a body; only code in them is broken. containers: what lends its name to theirs.
    skip: never looked into (types, imports, attributes, the insides of strings and macros). tests: names of
    functions and modules that are tests beside the code.
    statements: whole statements that can be removed. exits: what leaves a block; a guard holds nothing else.
    nothing: what a lost result is written as, "" where the language has no such value for most types.
    parenthesised: whether a condition has parentheses of its own. suffix: of a file's name -> part of the language.
    """

    name: Language
    load: Callable[[], object]
    functions: _Kinds
    containers: _Kinds
    skip: _Kinds
    statements: _Kinds
    blocks: _Kinds
    exits: _Kinds
    suffixes: tuple[str, ...]
    tests: _Kinds = frozenset()
    binders: _Kinds = frozenset()
    binary: _Kinds = frozenset({"binary_expression"})
    assigns: _Kinds = frozenset()
    calls: _Kinds = frozenset({"call_expression"})
    integers: _Kinds = frozenset()
    booleans: _Kinds = frozenset({"true", "false"})
    ifs: _Kinds = frozenset({"if_statement"})
    loops: _Kinds = frozenset({"while_statement", "for_statement"})
    ternaries: _Kinds = frozenset()
    updates: _Kinds = frozenset()
    nots: _Kinds = frozenset({"unary_expression"})
    returns: _Kinds = frozenset({"return_statement"})
    indexes: _Kinds = frozenset()
    names: _Kinds = frozenset({"identifier"})
    awaits: _Kinds = frozenset()
    nothing: str = ""
    parenthesised: bool = True
    ends: str = ";"

    @cached_property
    def parser(self) -> tree_sitter.Parser:
        """A parser of this language."""
        return tree_sitter.Parser(tree_sitter.Language(self.load()))


def _kinds(text: str) -> _Kinds:
    return frozenset(text.split())


_SCRIPT: dict[str, Any] = {
    "functions": _kinds(
        "function_declaration function_expression arrow_function method_definition generator_function_declaration "
        "generator_function"
    ),
    "containers": _kinds("class_declaration class"),
    "skip": _kinds(
        "import_statement export_clause type_annotation type_arguments type_parameters interface_declaration "
        "type_alias_declaration template_string string regex comment decorator ambient_declaration enum_declaration"
    ),
    "statements": _kinds("expression_statement"),
    "blocks": _kinds("statement_block"),
    "exits": _kinds("return_statement throw_statement continue_statement break_statement"),
    "binders": _kinds(
        "variable_declarator required_parameter optional_parameter assignment_pattern formal_parameters"
    ),
    "assigns": _kinds("augmented_assignment_expression"),
    "calls": _kinds("call_expression new_expression"),
    "integers": _kinds("number"),
    "loops": _kinds("while_statement for_statement do_statement"),
    "ternaries": _kinds("ternary_expression"),
    "updates": _kinds("update_expression"),
    "indexes": _kinds("subscript_expression"),
    "awaits": _kinds("await_expression"),
    "nothing": "undefined",
}

_C: dict[str, Any] = {
    "functions": _kinds("function_definition lambda_expression"),
    "containers": _kinds("class_specifier struct_specifier namespace_definition"),
    "skip": _kinds(
        "preproc_include preproc_def preproc_function_def preproc_call string_literal char_literal comment "
        "type_descriptor parameter_list template_parameter_list template_argument_list field_declaration_list "
        "raw_string_literal attribute_declaration attribute_specifier sizeof_expression enumerator_list"
    ),
    "statements": _kinds("expression_statement"),
    "blocks": _kinds("compound_statement"),
    "exits": _kinds("return_statement throw_statement continue_statement break_statement goto_statement"),
    "binders": _kinds("init_declarator parameter_declaration declaration"),
    "assigns": _kinds("assignment_expression"),
    "integers": _kinds("number_literal"),
    "loops": _kinds("while_statement for_statement do_statement"),
    "ternaries": _kinds("conditional_expression"),
    "updates": _kinds("update_expression"),
    "indexes": _kinds("subscript_expression"),
    "nothing": "0",
}

_ROWS = (
    Grammar(name="javascript", load=tree_sitter_javascript.language, suffixes=(".js", ".cjs", ".mjs"), **_SCRIPT),
    Grammar(
        name="typescript",
        load=tree_sitter_typescript.language_typescript,
        suffixes=(".ts", ".mts", ".cts"),
        **_SCRIPT,
    ),
    Grammar(
        name="go",
        load=tree_sitter_go.language,
        suffixes=(".go",),
        functions=_kinds("function_declaration method_declaration"),
        containers=frozenset(),
        skip=_kinds(
            "import_declaration type_declaration interpreted_string_literal raw_string_literal comment "
            "type_arguments parameter_list const_declaration"
        ),
        statements=_kinds("expression_statement assignment_statement inc_statement dec_statement defer_statement"),
        blocks=_kinds("block"),
        exits=_kinds("return_statement continue_statement break_statement goto_statement"),
        binders=_kinds("short_var_declaration var_spec parameter_declaration range_clause"),
        assigns=_kinds("assignment_statement"),
        integers=_kinds("int_literal"),
        loops=_kinds("for_statement for_clause"),
        updates=_kinds("inc_statement dec_statement"),
        indexes=_kinds("index_expression slice_expression"),
        parenthesised=False,
        ends="",
    ),
    Grammar(
        name="rust",
        load=tree_sitter_rust.language,
        suffixes=(".rs",),
        functions=_kinds("function_item"),
        containers=_kinds("impl_item trait_item mod_item"),
        skip=_kinds(
            "use_declaration attribute_item inner_attribute_item macro_definition token_tree string_literal "
            "raw_string_literal char_literal line_comment block_comment type_arguments type_parameters parameters "
            "where_clause match_pattern tuple_struct_pattern let_condition struct_item enum_item generic_type"
        ),
        tests=_kinds("tests test"),
        statements=_kinds("expression_statement"),
        blocks=_kinds("block"),
        exits=_kinds("return_expression continue_expression break_expression"),
        binders=_kinds("let_declaration parameter"),
        assigns=_kinds("compound_assignment_expr"),
        integers=_kinds("integer_literal"),
        booleans=_kinds("boolean_literal"),
        ifs=_kinds("if_expression"),
        loops=_kinds("while_expression"),
        returns=_kinds("return_expression"),
        indexes=_kinds("index_expression"),
        parenthesised=False,
    ),
    Grammar(name="c", load=tree_sitter_c.language, suffixes=(".c", ".h"), **_C),
    Grammar(name="c++", load=tree_sitter_cpp.language, suffixes=(".cc", ".cpp", ".cxx", ".hpp", ".h"), **_C),
    Grammar(
        name="java",
        load=tree_sitter_java.language,
        suffixes=(".java",),
        functions=_kinds("method_declaration constructor_declaration"),
        containers=_kinds("class_declaration enum_declaration record_declaration"),
        skip=_kinds(
            "import_declaration package_declaration string_literal character_literal line_comment block_comment "
            "type_arguments type_parameters formal_parameters marker_annotation annotation throws cast_type "
            "text_block"
        ),
        statements=_kinds("expression_statement"),
        blocks=_kinds("block constructor_body"),
        exits=_kinds("return_statement throw_statement continue_statement break_statement"),
        binders=_kinds("variable_declarator formal_parameter enhanced_for_statement"),
        assigns=_kinds("assignment_expression"),
        calls=_kinds("method_invocation object_creation_expression"),
        integers=_kinds("decimal_integer_literal"),
        loops=_kinds("while_statement for_statement do_statement"),
        ternaries=_kinds("ternary_expression"),
        updates=_kinds("update_expression"),
        indexes=_kinds("array_access"),
        nothing="null",
    ),
)

GRAMMARS: dict[Language, Grammar] = {row.name: row for row in _ROWS}
"""The languages that bugs can be put into here; Python has operators of its own."""

TSX = tree_sitter.Parser(tree_sitter.Language(tree_sitter_typescript.language_tsx()))
"""Of TypeScript with markup (``.tsx``), which has the same kinds of nodes."""
