"""A query is a function over columns: it is given a table of episodes and says for each row whether it is meant.

In text it is a Python expression over column names, of which only comparisons, `and`, `or`, `not`, `in` and
constants are taken: ``reward > 0.5 and stop != 'turn_limit'``. Null is less than, equal to and greater than
nothing.
"""

import ast
from collections.abc import Callable
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from envgym.store import StoreReader

__all__ = ["QUERIED", "Query", "chosen", "parse_query"]

Query = Callable[[pa.Table], pa.ChunkedArray]
"""Given a table, a column of booleans; null counts as false."""

_PROVENANCE = ("environment", "agent")
QUERIED = (
    "id", "task_id", "group", "seed", "parent", "stop", "failed", "turns", "sampled_tokens", "reward", "wall_s",
    *_PROVENANCE,
)  # fmt: skip
"""The columns that an expression may name: those of the table of episodes that are one value, `failed`, and who
played where, as the provenance says."""

_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: pc.less, ast.LtE: pc.less_equal, ast.Gt: pc.greater, ast.GtE: pc.greater_equal, ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
}  # fmt: skip


def chosen(reader: StoreReader, query: Query) -> list[str]:
    """The ids of the episodes that a query means, in stored order."""
    table = reader.table("episodes")
    table = table.append_column("failed", pc.is_valid(table.column("failure")))
    for name in _PROVENANCE:
        said = [pc.map_lookup(chunk, name, "first") for chunk in table.column("provenance").chunks]
        table = table.append_column(name, pa.chunked_array(said, pa.string()))
    wanted = pc.fill_null(query(table), False).to_numpy(zero_copy_only=False)
    return [name for name, meant in zip(reader.ids, wanted, strict=True) if meant]


def parse_query(text: str) -> Query:
    """The query that an expression says. Raises ValueError for what is none, naming the part."""
    try:
        tree = ast.parse(text, mode="eval").body
        evaluate = _compiled(tree, text)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text[:200]!r} is no expression: {error}") from error

    def query(table: pa.Table) -> pa.ChunkedArray:
        try:
            found = evaluate(table)
        except (pa.ArrowException, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{text!r}: {(str(error).splitlines() or [type(error).__name__])[0]}") from error
        if not isinstance(found, pa.ChunkedArray) or not pa.types.is_boolean(found.type):
            raise ValueError(f"{text!r} says of no episode whether it is meant; compare a column with something")
        return found

    return query


def _compiled(node: ast.expr, text: str) -> Callable[[pa.Table], Any]:
    if isinstance(node, ast.BoolOp):
        join = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
        parts = [_compiled(value, text) for value in node.values]
        return lambda table: reduce(join, [pc.fill_null(part(table), False) for part in parts])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _compiled(node.operand, text)
        return lambda table: pc.invert(pc.fill_null(inner(table), False))
    if isinstance(node, ast.UnaryOp | ast.Constant | ast.List | ast.Tuple):
        try:
            value = ast.literal_eval(node)
        except ValueError:
            raise _refused(node, text) from None
        return lambda _table: value
    if isinstance(node, ast.Name):
        if node.id not in QUERIED:
            raise ValueError(f"{text!r}: there is no column {node.id!r}; there are: {', '.join(QUERIED)}")
        return lambda table: table.column(node.id)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _comparison(node, text)
    raise _refused(node, text)


def _comparison(node: ast.Compare, text: str) -> Callable[[pa.Table], Any]:
    left, right, kind = _compiled(node.left, text), _compiled(node.comparators[0], text), node.ops[0]
    if type(kind) in _COMPARED:
        compare = _COMPARED[type(kind)]
        return lambda table: compare(left(table), right(table))
    if isinstance(kind, ast.In | ast.NotIn) and isinstance(node.comparators[0], ast.List | ast.Tuple):
        values = pa.array(list(ast.literal_eval(node.comparators[0])))
        if isinstance(kind, ast.In):
            return lambda table: pc.is_in(left(table), value_set=values)
        return lambda table: pc.invert(pc.is_in(left(table), value_set=values))
    if isinstance(kind, ast.Is | ast.IsNot) and getattr(node.comparators[0], "value", 0) is None:
        return lambda table: (pc.is_null if isinstance(kind, ast.Is) else pc.is_valid)(left(table))
    raise _refused(node, text)


def _refused(node: ast.expr, text: str) -> ValueError:
    part = ast.get_source_segment(text, node) or type(node).__name__
    return ValueError(
        f"{text!r}: {part!r} is not taken; write comparisons of columns with constants, joined by and, or, not, in"
    )
