"""vLLM's own engine behind `wire.Engine`: imported only by an interpreter that has vLLM.

The engine runs in this process, without processes of its own, so that weights change exactly between two steps.
Log-probabilities are of the distribution that was sampled from (vLLM's processed ones).
"""

import os
from collections.abc import Sequence
from typing import Any

from safetensors import safe_open

from envgym_agents.policies.vllm.wire import Delta, EngineSettings, Generate

__all__ = ["VllmEngine"]

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


_AT_ONCE = 4096
"""Tokens of one step on a CPU, where a context is not longer."""


class VllmEngine:
    """One model in vLLM. Raises what vLLM raises where it cannot have it."""

    def __init__(self, settings: EngineSettings) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ[name] = value
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(settings.cache_gib)
        if settings.threads:
            os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
            os.environ["OMP_NUM_THREADS"] = str(settings.threads)
        if settings.eager:
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # else small things of the sampler are compiled
        self._vllm = _Imported()
        args = self._vllm.EngineArgs(
            model=settings.folder,
            skip_tokenizer_init=True,
            dtype=settings.dtype,
            enforce_eager=settings.eager,
            max_model_len=settings.max_length,
            max_num_seqs=settings.sequences,
            block_size=32,  # what is cached of a context, and found again, is in whole blocks
            gpu_memory_utilization=settings.gpu_share,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            generation_config="vllm",  # no settings of sampling but those of a request
            seed=0,
            **self._whole_prompts(settings.max_length),
        )
        self._engine = self._vllm.LLMEngine.from_engine_args(args)
        self.name = f"vLLM {self._vllm.version}"

    def _whole_prompts(self, max_length: int) -> dict[str, Any]:
        """On a CPU, where no generator can be set back, a prompt is computed in one step or waits for the next.

        After a part of a prompt vLLM takes back the draw of the request's generator, which is a RuntimeError there
        and the engine's end: some dozen prompts that come at once are enough.
        """
        if not self._vllm.on_cpu:
            return {}
        return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(max_length, _AT_ONCE)}

    def add(self, key: str, request: Generate, salt: str) -> None:
        """Begin a request."""
        params = self._vllm.SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p if request.temperature else 1.0,
            seed=request.seed,
            max_tokens=request.max_tokens,
            stop_token_ids=list(request.stop_ids),
            allowed_token_ids=None if request.allowed is None else list(request.allowed),
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=self._vllm.DELTA,
        )
        self._engine.add_request(key, {"prompt_token_ids": list(request.ids), "cache_salt": salt}, params)

    def tell(self, key: str, ids: Sequence[int]) -> None:
        """Begin to compute how likely the ids are; vLLM samples one more id, which is of no use."""
        params = self._vllm.SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=self._vllm.FINAL
        )
        self._engine.add_request(key, {"prompt_token_ids": list(ids)}, params)

    def step(self) -> Sequence[Delta]:
        """One step of all requests."""
        found = []
        for output in self._engine.step():
            if output.prompt_logprobs is not None:
                pairs = zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
                found.append(Delta(output.request_id, (), [at[token].logprob for at, token in pairs], "length"))
                continue
            (said,) = output.outputs
            ids = list(said.token_ids)
            logprobs = [at[token].logprob for at, token in zip(said.logprobs or (), ids, strict=True)]
            found.append(Delta(output.request_id, ids, logprobs, said.finish_reason, output.num_cached_tokens or 0))
        return found

    def abort(self, keys: Sequence[str]) -> None:
        """Forget requests."""
        self._engine.abort_request(list(keys))

    def load(self, file: str) -> None:
        """New weights in place, by their Hugging Face names; every cached prefix is dropped."""
        with safe_open(file, framework="pt") as stored:
            weights = ((name, stored.get_tensor(name)) for name in stored.keys())  # noqa: SIM118  # no mapping
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self._engine.reset_prefix_cache()


class _Imported:
    """What is used of vLLM, imported after its environment variables were set: it reads some at import."""

    def __init__(self) -> None:
        import vllm
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.sampling_params import RequestOutputKind, SamplingParams
        from vllm.v1.engine.llm_engine import LLMEngine

        self.version = vllm.__version__
        self.on_cpu = bool(current_platform.is_cpu())
        self.EngineArgs: Any = EngineArgs
        self.SamplingParams: Any = SamplingParams
        self.LLMEngine: Any = LLMEngine
        self.DELTA, self.FINAL = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY
