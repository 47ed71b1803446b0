import importlib.util
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session")
def toy():
    """The module with the engines."""
    spec = importlib.util.spec_from_file_location("envgym_test_toy", Path(__file__).with_name("toy.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def case_of():
    """A learner beside a policy, whose weights change at random at every sync, as in the tests of the kit."""
    path = Path(__file__).parents[1] / "test_check_policy.py"
    spec = importlib.util.spec_from_file_location("envgym_test_kit", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.case_of
