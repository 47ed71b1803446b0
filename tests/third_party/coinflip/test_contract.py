from coinflip import TASKS, CoinFlip

from envgym.testing import check_env_sync


def test_contract() -> None:
    assert check_env_sync(lambda: CoinFlip(TASKS[0])).unreached == ()
