import threading

import numpy as np
import torch
from envgym_agents.policies.draw import draw
from envgym_agents.policies.vllm.wire import Delta
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from envgym.limits import Sampling


class ToyEngine:
    """Computes every context anew. `asks` holds what it was asked, `salts` under which salt."""

    def __init__(self, settings):
        self.name = "toy 1"
        self.model = AutoModelForCausalLM.from_pretrained(settings.folder, dtype=torch.float32).eval()
        self.running, self.asks, self.salts, self.telling = {}, [], [], {}

    def add(self, key, request, salt):
        self.asks.append(request)
        self.salts.append(salt)
        self.running[key] = (request, list(request.ids), np.random.default_rng(request.seed), salt)

    def tell(self, key, ids):
        if 99 in ids:
            raise ValueError("99 is no id of mine")
        self.telling[key] = list(ids)

    def step(self):
        found = [Delta(key, (), self.logprobs(ids), "length") for key, ids in self.telling.items()]
        self.telling.clear()
        for key, (request, context, rng, _salt) in list(self.running.items()):
            done = len(context) - len(request.ids)
            sampling = Sampling(
                request.max_tokens, request.temperature, request.top_p, request.stop_ids, request.allowed
            )
            with torch.inference_mode():
                logits = self.model(input_ids=torch.tensor([context])).logits[0, -1].numpy()
            token, logprob = draw(logits, sampling, rng, first=not done)
            context.append(token)
            finish = "length" if done + 1 == request.max_tokens else None
            if token in request.stop_ids:
                finish = "stop"
            if finish:
                del self.running[key]
            found.append(Delta(key, [token], [logprob], finish))
        return found

    def logprobs(self, ids):
        with torch.inference_mode():
            logs = self.model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        return logs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    def abort(self, keys):
        for key in keys:
            self.running.pop(key, None)
            self.telling.pop(key, None)

    def load(self, file):
        self.model.load_state_dict(load_file(file))


class StaleEngine(ToyEngine):
    """Takes new weights and goes on with the old ones, as vLLM does with tied output layers on a CPU."""

    def load(self, file):
        pass


class GatedEngine(ToyEngine):
    """Stands still when a request has sampled 20 ids: it says so by `reached` and waits for `gate`."""

    def __init__(self, settings):
        super().__init__(settings)
        self.reached, self.gate = threading.Event(), threading.Event()

    def step(self):
        if any(len(context) - len(request.ids) == 20 for request, context, *_ in self.running.values()):
            self.reached.set()
            assert self.gate.wait(100)
        return super().step()
