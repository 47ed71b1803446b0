"""Changes between an agent and any world: each keeps determinism, snapshots and forks."""

from envgym.wrappers.adversary import Adversary
from envgym.wrappers.adversary_actor import AdversaryActor
from envgym.wrappers.bounds import Budget, Safety
from envgym.wrappers.delay import Delay
from envgym.wrappers.instructions import Specificity
from envgym.wrappers.noise import Noise, Perturbation
from envgym.wrappers.twist import Seen, Twist, Wrapped

__all__ = [
    "Adversary", "AdversaryActor", "Budget", "Delay", "Noise", "Perturbation", "Safety", "Seen", "Specificity",
    "Twist", "Wrapped",
]  # fmt: skip
