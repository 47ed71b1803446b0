"""Fetch every package and project that code-repair tasks are built from, checked by hash; quick the next time.

Several packages at once: pip waits for the index and for the build backends that it asks for a package's metadata.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from envgym_environments.code_repair.sources import fetch, packages, source_tree
from envgym_environments.code_repair.suites.fetch import archive, node_modules
from envgym_environments.code_repair.suites.projects import projects

from envgym.errors import InfrastructureFailure

AT_ONCE = 4


def main() -> None:
    """Fetch all of both recipes, a line each; a project that this machine's registries do not give is told."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        wanted = [(package, pool.submit(fetch, package)) for package in packages() if package.origin == "pypi"]
        try:
            for package, fetched in wanted:
                fetched.result()
                source_tree(package)
                print(f"sources: {package.slug}", file=sys.stderr, flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # those that have begun end by themselves
            raise
    for project in projects():
        print(f"sources: {project.slug} ({project.language})", file=sys.stderr, flush=True)
        try:
            archive(project)
            node_modules(project)
        except InfrastructureFailure as error:
            print(f"sources: left out, its tests will say so: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
