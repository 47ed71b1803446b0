"""SWE-smith's rows: the patch of a row is the bug, and what undoes it is the answer."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import JsonValue

from envgym_environments.code_repair.formats.contract import Item
from envgym_environments.code_repair.formats.spelling import CONDA, as_language, command, language_of, suite_of
from envgym_environments.code_repair.formats.swe_bench import WORKDIR
from envgym_environments.code_repair.matching import Rules
from envgym_environments.code_repair.patch_text import reversed_patch
from envgym_environments.code_repair.record import RepairRecord
from envgym_environments.code_repair.suites.reader_node_log import spelling_of
from envgym_environments.code_repair.suites.suite import Suite
from envgym_environments.code_repair.worlds import image_world

__all__ = ["SWE_SMITH", "SweSmith"]

_RULES = Rules(only_listed=True)

_NODE = (
    f"cd {WORKDIR}",
    "export CI=1 NO_COLOR=1",
    """asked=$(node -p '(require("./package.json").scripts || {}).test || ""' 2> /dev/null)""",
    "has() { [ -e node_modules/.bin/$1 ]; }",
    'case "$asked" in',
    "*vitest*) npx --no-install vitest run --no-color --reporter verbose ;;",
    "*jest* | *mocha*) npm test -- --verbose ;;",
    "*) if has vitest; then npx --no-install vitest run --no-color --reporter verbose",
    "elif has jest; then npx --no-install jest --verbose",
    "elif has mocha; then npx --no-install mocha",
    "else node --test --test-reporter=spec; fi ;;",
    "esac 2>&1",
)
"""How the tests of a JavaScript tree are run: by what its `package.json` names, or what is there.

The data set's own program has a command for each repository (`swesmith/profiles/javascript.py`): vitest, jest and
mocha by `npm test`, or node's own.
"""


class SweSmith:
    """Implements `TaskFormat`.

    The image holds the unbroken tree. The rows do not say how tests are run: Python's are pytest's, Go's `go test`,
    those of JavaScript and TypeScript by the runner that the tree has; tasks of other languages are kept, and not
    played.
    """

    name = "swe-smith"
    kind: Literal["rows", "folders"] = "rows"
    summary = "SWE-smith's rows: the patch is the bug, and its reverse the answer"

    def claims(self, values: Mapping[str, JsonValue]) -> int:
        """See `TaskFormat`."""
        wanted = {"instance_id", "patch", "FAIL_TO_PASS", "image_name"} <= values.keys()
        return 3 if wanted and not {"test_patch", "install_config"} & values.keys() else 0

    def fields(self, item: Item) -> dict[str, Any]:
        """See `TaskFormat`."""
        bug = item.text("patch")
        language = as_language(item.text("language", "")) or language_of(bug) or "python"
        return {
            "id": item.text("instance_id"),
            "statement": item.text("problem_statement", ""),
            "repo": item.text("repo"),
            "base_commit": item.text("base_commit", ""),
            "created_at": item.word("created_at"),
            "language": language,
            "bug_patch": bug,
            "gold_patch": reversed_patch(bug),
            "fail_to_pass": item.ids("FAIL_TO_PASS", required=True),
            "pass_to_pass": item.ids("PASS_TO_PASS"),
            "split": item.text("split", item.split or "train"),
            "world": image_world(item.text("image_name"), WORKDIR),
            "suite": _suite(language, bug, item.ids("FAIL_TO_PASS", required=True)),
            "rules": _RULES,
        }

    def item(self, record: RepairRecord) -> dict[str, JsonValue]:
        """See `TaskFormat`."""
        return {
            "instance_id": record.id,
            "repo": record.repo,
            "base_commit": record.base_commit,
            "created_at": record.created_at,
            "language": record.language,
            "patch": record.bug_patch,
            "problem_statement": record.statement,
            "FAIL_TO_PASS": list(record.fail_to_pass),
            "PASS_TO_PASS": list(record.pass_to_pass),
            "split": record.split,
            "image_name": record.world.image if record.world is not None else "none",
        }


def _suite(language: str, bug: str, failing: Sequence[str]) -> Suite | None:
    patches = (bug, "")
    if language == "python":
        test = 'pytest --disable-warnings --color=no --tb=no --verbose "$@"'
        line = command([*CONDA, f"cd {WORKDIR}", test], tests=True)
        return suite_of(language, line, "swebench-pytest-verbose", patches=patches, select="{file}")
    if language == "go":
        return suite_of(language, "go test -v -count=1 ./...", "swebench-go", patches=patches)
    if language in ("javascript", "typescript"):
        return suite_of(language, command(_NODE), spelling_of(failing), patches=patches)
    return None


SWE_SMITH = SweSmith()
