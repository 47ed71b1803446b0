"""A policy whose sampler is another process: what agents on a worker see of a `SamplerHost`.

Tokens and log-probabilities come back as they were sampled. A sampler that is gone fails the episode with
`HostLost`, and the driver has it played again with another.
"""

import secrets
from typing import Any

import numpy as np

from envgym.errors import AgentFailure, HostLost
from envgym.limits import Sampling
from envgym.policy import Completion, Prompt, Session

__all__ = ["FarPolicy", "FarSession"]


class FarSession:
    """The key of a session there. Forking and closing are said, not waited for: calls of one actor keep order."""

    def __init__(self, sampler: Any) -> None:
        self.key, self._sampler = secrets.token_hex(8), sampler

    def fork(self) -> "FarSession":
        """A session with the same cache, independent from here on."""
        other = FarSession(self._sampler)
        self._sampler.fork.remote(self.key, other.key)
        return other

    def close(self) -> None:
        """Free the cache."""
        self._sampler.end.remote(self.key)


class FarPolicy:
    """`envgym.policy.Policy` over an actor. max_length: the longest context, sampled tokens included."""

    def __init__(self, sampler: Any, max_length: int, version: int) -> None:
        self.max_length, self.version, self._sampler = max_length, version, sampler

    def session(self) -> FarSession:
        """A fresh, empty session; there, it begins with its first use."""
        return FarSession(self._sampler)

    async def sample(self, prompt: Prompt, sampling: Sampling, session: Session | None = None) -> Completion:
        """As the sampler's own policy. Raises what that raised, and HostLost when it is gone."""
        from ray.exceptions import RayActorError, RayTaskError

        if prompt.media:
            raise ValueError("this policy reads text only; the prompt holds images")
        own = session is None
        far = self.session() if session is None else session
        if not isinstance(far, FarSession):
            raise ValueError("this session belongs to another policy; ask this one for a session()")
        try:
            ids = np.asarray(prompt.ids, np.int32)
            completion: Completion = await self._sampler.sample.remote(far.key, ids, sampling)
        except RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, Exception) else AgentFailure(str(error)) from error
        except RayActorError as error:
            raise HostLost("the sampler is gone, or its host") from error
        finally:
            if own:
                far.close()
        self.version = completion.versions[-1].version if completion.versions else self.version
        return completion
