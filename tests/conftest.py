import os
from pathlib import Path

import pytest
from hypothesis import settings

# Everything works without a network: a test that reaches for the Hub must fail, not wait.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# A forked child of some tests cannot use the threads that its parent began.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# These machines are shared: how long an example takes says nothing about the code.
settings.register_profile("plmctl", deadline=None)
settings.load_profile("plmctl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="a longer proof: run with --slow"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the checkout, which a user's checkout does not have."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the maintainers' folder of real data beside the checkout")
    return folder
